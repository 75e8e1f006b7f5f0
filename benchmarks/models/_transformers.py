"""Models of the Hugging Face transformers library, built from a configuration: nothing is downloaded.

The library's class is one unit, so a pipeline cannot cut it, and no tensor plan of ours knows its layers; its decoder layers
are the blocks. Dropout is 0. A model whose weights follow from one of our own is an outside check of it: `hf-llama` and
`hf-gpt2` name their twin, and how a weight of the one is made of weights of the other.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from benchmarks.errors import UsageError
from benchmarks.models._shapes import parameter_shapes
from benchmarks.models._text import TextModel

UNIT, LIBRARY = "model", "model.library"
"""The one unit, and where the library's own module is in it."""


class Logits(nn.Module):
    """(rows, sequence) tokens in, logits (rows, sequence, vocabulary) out."""

    def __init__(self, library: PreTrainedModel):
        super().__init__()
        self.library = library

    def forward(self, tokens: Tensor) -> Tensor:
        return self.library(input_ids=tokens, use_cache=False).logits


class LibraryModel(TextModel):
    """What strategies must know of any causal language model of the library.

    Args:
        config: of the model; its dropout is set to 0.
    """

    tensor_plan = ()
    units = (UNIT,)

    def __init__(self, name: str, config: PretrainedConfig):
        self.name, self.config = name, config
        for attribute in list(vars(config)):
            if attribute.endswith(("dropout", "pdrop")) and isinstance(getattr(config, attribute), float):
                setattr(config, attribute, 0.0)
        with torch.device("meta"):
            library = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
        named = dict(library.named_parameters(remove_duplicate=False))
        first = {id(parameter): name for name, parameter in reversed(named.items())}
        self.tied = {f"{LIBRARY}.{n}": f"{LIBRARY}.{first[id(p)]}" for n, p in named.items() if first[id(p)] != n}
        lists = {n: m for n, m in library.named_modules() if isinstance(m, nn.ModuleList)}
        layers = max(lists, key=lambda n: sum(p.numel() for p in lists[n].parameters()), default=None)
        self.blocks = () if layers is None else tuple(f"{LIBRARY}.{layers}.{i}" for i in range(len(lists[layers])))
        self.products = [
            p.numel()
            for module in library.modules()
            if not isinstance(module, nn.Embedding)
            for p in module.parameters(recurse=False)
            if p.dim() > 1
        ]
        """Elements of the weights that multiply."""

    def build(self, unit: str) -> nn.Module:
        library = AutoModelForCausalLM.from_config(self.config, attn_implementation="sdpa")
        with torch.device("cpu"):
            for module in library.modules():
                missing = [name for name, buffer in module.named_buffers(recurse=False) if buffer.is_meta]
                for name in missing:  # tables of positions, which are no parameters, so that nobody else makes them real
                    module._buffers[name] = torch.empty_like(module._buffers[name], device="cpu")
                if missing:
                    library._init_weights(module)
        for module in library.modules():
            if isinstance(module, nn.LayerNorm):
                module.forward = functools.partial(_layer_norm, module)
        for name in self.tied:  # whoever puts units together ties them
            owner, _, attribute = name.removeprefix(f"{LIBRARY}.").rpartition(".")
            layer = library.get_submodule(owner)
            setattr(layer, attribute, nn.Parameter(getattr(layer, attribute).detach().clone()))
        return Logits(library)

    def initial(self, name: str, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        if len(shape) == 1:
            return torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)
        deviation = getattr(self.config, "initializer_range", None) or 0.02
        return torch.empty(shape).normal_(0.0, deviation, generator=generator)

    def boundary(self, unit: str, rows: int, sequence: int) -> tuple[int, ...]:
        return (rows, sequence, self.config.vocab_size)

    def forward_flops(self, unit: str, rows: int, sequence: int, *, causal: bool) -> int:
        c = self.config
        width = (getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads) * c.num_attention_heads
        pairs = sequence * (sequence + 1) // 2 if causal else sequence * sequence
        return 2 * rows * sequence * sum(self.products) + 4 * rows * pairs * width * c.num_hidden_layers

    def tensor_problem(self, degree: int) -> str | None:
        return f"{self.name} is one module of another library, which the tensor plans of this one do not know: use a data axis"

    def shallow(self, blocks: int) -> Mapping[str, int]:
        return {}

    @property
    def longest_sequence(self) -> int:
        return self.config.max_position_embeddings

    @cached_property
    def parameter_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return parameter_shapes(self)


class TwinModel(LibraryModel):
    """A model of the library with the weights of one of ours.

    Args:
        twin: our model.
        rules: the library's name of a weight in a block or outside, without `weight` or `bias` -> our names whose values,
            one behind the other, it holds; `#` stands for the block's number.
        transposed: whether its weight matrices are (inputs, outputs).
    """

    def __init__(
        self, name: str, config: PretrainedConfig, twin: TextModel, rules: Mapping[str, Sequence[str]], *, transposed: bool
    ):
        super().__init__(name, config)
        self.twin, self._rules, self._transposed = twin, rules, transposed

    def first_value(self, name: str, draw: Callable[[str], torch.Generator]) -> Tensor:
        return self.from_twin(name, lambda theirs: self.twin.first_value(self.twin.tied.get(theirs, theirs), draw))

    def from_twin(self, name: str, value: Callable[[str], Tensor]) -> Tensor:
        """What stands at the library's parameter `name` when `value` gives what stands at ours: weights, or gradients."""
        module, _, kind = name.removeprefix(f"{LIBRARY}.").rpartition(".")
        number = next((word for word in module.split(".") if word.isdigit()), "")
        ours = self._rules[module.replace(f".{number}.", ".#.") if number else module]
        values = [value(f"{our.replace('#', number)}.{kind}") for our in ours]
        matrix = kind == "weight" and values[0].dim() == 2 and not module.endswith(("wte", "wpe", "embed_tokens", "lm_head"))
        if matrix and self._transposed:
            values = [v.T for v in values]
        return torch.cat(values, dim=-1) if len(values) > 1 else values[0].clone()

    def shallow(self, blocks: int) -> Mapping[str, int]:
        return self.twin.shallow(blocks)


def _layer_norm(module: nn.LayerNorm, x: Tensor) -> Tensor:
    """Fully sharded mixed precision gathers parameters in 16 bits while the stream is fp32, which the kernel does not take."""
    bias = None if module.bias is None else module.bias.to(x.dtype)
    return F.layer_norm(x, module.normalized_shape, module.weight.to(x.dtype), bias, module.eps)


def from_path(name: str) -> LibraryModel:
    """The model whose `config.json`, or a folder with one, stands behind `hf:` in its name. Weights are not read.

    Raises:
        UsageError: there is none, or the library does not know its kind.
    """
    path = Path(name.partition(":")[2]).expanduser()
    file = path / "config.json" if path.is_dir() else path
    try:
        values: dict[str, Any] = json.loads(file.read_text())
        config = AutoConfig.for_model(values.pop("model_type"), **values)
        return LibraryModel(name, config)
    except (OSError, KeyError, ValueError) as error:
        raise UsageError(
            f"cannot read model {name!r}: {file} gave {type(error).__name__}: {str(error)[:200]}; give the path of a "
            f"config.json, or a folder with one, of a causal language model that transformers {transformers.__version__} knows"
        ) from None
