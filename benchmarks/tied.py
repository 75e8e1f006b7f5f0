"""A weight that two layers of one rank share must stay one object, whatever a strategy does to parameters."""

from __future__ import annotations

from torch import nn


def shared_names(module: nn.Module) -> dict[str, str]:
    """Second name -> first name of every parameter object with two names."""
    first: dict[int, str] = {}
    shared = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), name) != name:
            shared[name] = first[id(parameter)]
    return shared


def tie_again(module: nn.Module, shared: dict[str, str]) -> None:
    """Make each second name mean the parameter of the first name again, after parameters were replaced."""
    for second, first in shared.items():
        owner, _, attribute = second.rpartition(".")
        module.get_submodule(owner).register_parameter(attribute, module.get_parameter(first))


def read_through(module: nn.Module) -> None:
    """Let each second name be no parameter of its own: before its layer runs, it is read from the first."""
    for second, first in shared_names(module).items():
        owner, _, attribute = second.rpartition(".")
        source, _, original = first.rpartition(".")
        layer, origin = module.get_submodule(owner), module.get_submodule(source)
        delattr(layer, attribute)

        def read(layer: nn.Module, _inputs: object, attribute=attribute, origin=origin, original=original) -> None:
            object.__setattr__(layer, attribute, getattr(origin, original))

        layer.register_forward_pre_hook(read)
