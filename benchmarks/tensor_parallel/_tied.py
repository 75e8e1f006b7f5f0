"""Cutting layers makes new parameters; a weight that two layers of one rank shared must stay one object."""

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
    """Make each second name mean the parameter of the first name again."""
    for second, first in shared.items():
        owner, _, attribute = second.rpartition(".")
        module.get_submodule(owner).register_parameter(attribute, module.get_parameter(first))
