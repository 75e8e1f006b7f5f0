"""Turns what pydantic found wrong with somebody's input into one sentence with the nearest known name."""

from __future__ import annotations

from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from benchmarks.errors import UsageError, unknown


def usage_error(error: ValidationError, model: type[BaseModel], where: str) -> UsageError:
    """The first problem in `error`, as a sentence.

    Args:
        model: what was validated; its fields are the known keys.
        where: where the input stands, for example "in suite cpu.yaml".
    """
    problem = error.errors()[0]
    path = [str(part) for part in problem["loc"]]
    if problem["type"] == "extra_forbidden":
        inside = f" of {'.'.join(path[:-1])!r}" if path[:-1] else ""
        return unknown("key", path[-1], _keys(model, problem["loc"][:-1]), f"{where}{inside}".strip())
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, UsageError):
        return UsageError(f"{cause} ({where})")
    given = problem["input"]
    if problem["type"] == "literal_error":
        return unknown(_field(path), str(given), _literals(model, problem["loc"]), where)
    if problem["type"] == "missing":
        return UsageError(f"{'.'.join(path)!r} is missing {where}: it must be given")
    message = problem["msg"].removeprefix("Value error, ")
    return UsageError(f"{_field(path)} {given!r} {where} cannot be: {message[0].lower()}{message[1:]}")


def _field(path: list[str]) -> str:
    """The written place of a value: its keys, without the numbers of list items."""
    return ".".join(part for part in path if not part.isdigit()) or "value"


def _keys(model: type[BaseModel], path: tuple[Any, ...]) -> list[str]:
    annotation = _at(model, path)
    return [field.alias or name for name, field in annotation.model_fields.items()]


def _literals(model: type[BaseModel], path: tuple[Any, ...]) -> list[str]:
    return [str(value) for value in get_args(_at(model, path))]


def _at(annotation: Any, path: tuple[Any, ...]) -> Any:
    """The annotation that stands at `path` below `annotation`."""
    annotation = _bare(annotation)
    for part in path:
        if isinstance(part, int):
            annotation = _bare(get_args(annotation)[0])
        else:
            fields = annotation.model_fields
            name = next(n for n, f in fields.items() if part in (n, f.alias))
            annotation = _bare(fields[name].annotation)
    return annotation


def _bare(annotation: Any) -> Any:
    """`X` of `X | None` and of `Annotated[X, ...]`."""
    if get_origin(annotation) in (Union, UnionType):
        return _bare(next(a for a in get_args(annotation) if a is not type(None)))
    if hasattr(annotation, "__metadata__"):
        return _bare(annotation.__origin__)
    return annotation
