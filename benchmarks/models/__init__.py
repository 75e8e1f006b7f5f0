"""The reference models, one file each. Sizes stand in `configs/models/<family>.yaml`.

A model's name is `family-size`, with options in brackets that replace dimensions of that size:

    >>> parse("llama-8b[blocks=4]").dimensions["blocks"]
    4

A name `hf-family-size` is the same size of that family in the Hugging Face transformers library, and `hf:PATH` is the model of
that library whose `config.json` lies there.

A new model is a file here with a class `Model(contract.Model)` and a file of sizes there. Reading names needs no torch.
"""

from __future__ import annotations

import importlib
import re
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import yaml

from benchmarks import registry
from benchmarks.errors import UsageError, unknown

if TYPE_CHECKING:
    from benchmarks.contract import Model

CONFIGS = Path(__file__).parents[2] / "configs" / "models"

_NAME = re.compile(r"(?P<size>[A-Za-z0-9_.-]+)(?:\[(?P<options>[^\[\]]*)\])?")

LIBRARY, PATH = "hf-", "hf:"
"""How the names of models of another library begin: of families that have the sizes of ours, and of the user's own."""

Dimension = bool | int | float


class Parsed(NamedTuple):
    """A model's name, taken apart."""

    family: str
    """The file that implements it."""
    size: str
    """`family-size`, without options."""
    options: dict[str, Dimension]
    """The dimensions that the name replaces."""
    dimensions: dict[str, Dimension]
    """All dimensions, options included."""


@cache
def _sizes() -> dict[str, dict[str, Dimension]]:
    """`family-size` -> its dimensions, of all families."""
    found = {}
    for family in registry.names("models"):
        file = CONFIGS / f"{family.removeprefix(LIBRARY)}.yaml"
        for size, dimensions in yaml.safe_load(file.read_text()).items():
            found[f"{family}-{size}"] = dimensions
    return found


def names() -> tuple[str, ...]:
    """Every `family-size`."""
    return tuple(_sizes())


def parse(name: str) -> Parsed:
    """Take a model's name apart.

    Raises:
        UsageError: it has another form, or an unknown family, size or option; the message names the nearest one.
    """
    if name.startswith(PATH):
        return Parsed("hf", name, {}, {"vocabulary": 0})  # what its dimensions are stands in the file
    match = _NAME.fullmatch(name.strip())
    if match is None:
        raise UsageError(
            f"cannot read model {name!r}: write family-size or family-size[option=value], for example 'llama-8b[blocks=4]'"
        )
    size = match["size"]
    if size not in _sizes():
        raise unknown("model", size, names())
    default = _sizes()[size]
    options = {}
    for item in filter(None, (part.strip() for part in (match["options"] or "").split(","))):
        option, separator, value = (word.strip() for word in item.partition("="))
        if not separator:
            raise UsageError(f"cannot read option {item!r} of model {name!r}: write option=value, for example [blocks=4]")
        if option not in default:
            raise unknown("option", option, default, f"of model {name!r}")
        if option in options:
            raise UsageError(f"option {option!r} stands twice in model {name!r}: give each option once")
        options[option] = _value(name, option, value, type(default[option]))
    return Parsed(size.rpartition("-")[0], size, options, {**default, **options})


def check_name(name: str) -> None:
    """See that a model of this name exists, without making it.

    Raises:
        UsageError: what `parse` raises.
    """
    parse(name)


def reads_text(name: str) -> bool:
    """Whether a sample is a row of tokens, so many as a cell's `sequence` says; else it is an image. The sizes tell: only a
    model of text has a vocabulary.

    Raises:
        UsageError: what `parse` raises.
    """
    return "vocabulary" in parse(name).dimensions


def with_options(name: str, **options: Dimension) -> str:
    """The name of the same model with further dimensions replaced.

    >>> with_options("llama-8b[tied=true]", blocks=4)
    'llama-8b[blocks=4,tied=true]'
    """
    parsed = parse(name)
    merged = sorted({**parsed.options, **options}.items())
    return f"{parsed.size}[{','.join(f'{option}={str(value).lower()}' for option, value in merged)}]"


@lru_cache(maxsize=64)
def load(name: str) -> Model:
    """The model of this name, a description that is the same for all who ask. Imports torch; makes no tensor.

    Raises:
        UsageError: what `parse` raises, or dimensions that do not fit together.
        ImportError: its library is not installed.
    """
    if name.startswith(PATH):
        return importlib.import_module(f"{__name__}._transformers").from_path(name)
    parsed = parse(name)
    return registry.load("models", parsed.family).Model(name, parsed.dimensions)


def _value(name: str, option: str, text: str, kind: type) -> Dimension:
    words = {int: "a whole number of at least 1", float: "a positive number", bool: "true or false"}
    try:
        value = {"true": True, "false": False}[text] if kind is bool else kind(text)
    except (KeyError, ValueError):
        value = None
    if value is None or (kind is not bool and not 0 < value < float("inf")):
        raise UsageError(f"option {option!r} of model {name!r} has the value {text!r}: give {words[kind]}")
    return value
