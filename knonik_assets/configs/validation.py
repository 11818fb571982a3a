"""Turning pydantic's findings into one `ConfigError` that names the place, the value and the nearest known key."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from knonik_loader.errors import ConfigError

__all__ = ["check_texts", "nearest", "unknown", "validate"]

Model = TypeVar("Model", bound=BaseModel)
_MOST_SHOWN = 3


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word most like this one, or None when nothing resembles it."""
    words = list(known)
    by_lower = {each.lower(): each for each in words}
    found = difflib.get_close_matches(word.lower(), list(by_lower), n=1, cutoff=0.5)
    return by_lower[found[0]] if found else None


def unknown(word: str, known: Iterable[str], what: str = "key") -> str:
    """``unknown key 'imges'; did you mean 'images'?``, or the known words where none is near."""
    words = list(known)
    near = nearest(word, words)
    if near is not None:
        return f"unknown {what} {word!r}; did you mean {near!r}?"
    return f"unknown {what} {word!r}; known are {', '.join(map(repr, words)) or 'none'}."


def check_texts(metadata: dict[str, Any]) -> dict[str, Any]:
    """A pydantic validator of a ``metadata`` block: what the product itself reads in there is text.

    Raises:
        ValueError: one of these keys is there and is none.
    """
    for key in ("dataset", "robot_type", "language_instruction"):
        if key in metadata and not (isinstance(metadata[key], str) and metadata[key].strip()):
            raise ValueError(f"{key} must be a text, not {metadata[key]!r}")
    return metadata


def validate(model: type[Model], data: Any, where: str) -> Model:  # noqa: ANN401 - what a file holds
    """Build a model, or say in one line what is wrong, where, and what was probably meant.

    Args:
        model: the pydantic model.
        data: what a file or a caller gave.
        where: what to call it in messages, such as the file's path.

    Raises:
        ConfigError: the data does not fit the model.
    """
    if not isinstance(data, Mapping | BaseModel):
        raise ConfigError(f"{where} must hold a block of keys and values, not {_show(data)}.")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{where}: {_summary(model, error)}") from error


def _summary(model: type[BaseModel], error: ValidationError) -> str:
    places: dict[tuple[str | int, ...], list[Any]] = {}
    for finding in error.errors(include_url=False):
        loc = finding["loc"]
        if loc[-1:] == ("[key]",) and finding["type"] == "value_error":
            loc = loc[:-2]  # a key that is no good stands in the block around it
        places.setdefault(_path(model, loc), []).append(finding)
    lines = [
        _line(model, place, findings)
        for place, findings in places.items()
        # a union reports its other branches at a shorter place: what lies deeper is more exact
        if not any(len(other) > len(place) and other[: len(place)] == place for other in places)
    ]
    more = len(lines) - _MOST_SHOWN
    return " ".join(lines[:_MOST_SHOWN]) + (f" ({more} more)" if more > 0 else "")


def _line(model: type[BaseModel], place: tuple[str | int, ...], findings: Sequence[Any]) -> str:
    first = findings[0]
    if first["type"] == "extra_forbidden":
        text = unknown(str(place[-1]), _keys_at(model, first["loc"][:-1]))
        place = place[:-1]
    elif len(findings) == 1:
        text = _describe(first)
    else:
        rules = " or ".join(dict.fromkeys(_rule(finding) for finding in findings))
        text = f"must be {rules}, not {_show(first['input'])}."
    return f"{_dotted(place)}: {text}" if place else text


def _dotted(path: Sequence[str | int]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else part)
    return text


def _path(model: type[BaseModel], loc: Sequence[str | int]) -> tuple[str | int, ...]:
    """The user's own path: pydantic's, without its names of union branches."""
    path: list[str | int] = []
    kinds: list[Any] = [model]
    for part in loc:
        kinds, is_key = _step(kinds, part)
        if is_key:
            path.append(part)
    return tuple(path)


def _step(kinds: Sequence[Any], part: str | int) -> tuple[list[Any], bool]:
    """The types at a part of pydantic's path, and whether the part is a key of the user's or a union's branch."""
    branches = [kind for kind in _branches(kinds) if kind is not types.NoneType]  # pydantic doesn't name None
    if len(branches) > 1:
        names = re.findall(r"\w+", str(part))
        named = [kind for kind in branches if getattr(get_origin(kind) or kind, "__name__", None) in names]
        inner = [] if named else _inside(branches, part)
        return (named, False) if not inner else (inner, True)
    return _inside(branches, part), True


def _branches(kinds: Sequence[Any]) -> list[Any]:
    """Types behind annotations and unions."""
    found: list[Any] = []
    for kind in kinds:
        origin = get_origin(kind)
        if origin is Annotated:
            found += _branches([get_args(kind)[0]])
        elif origin in (Union, types.UnionType):
            found += _branches(get_args(kind))
        else:
            found.append(kind)
    return found


def _inside(kinds: Sequence[Any], part: str | int) -> list[Any]:
    """The types that may stand at a key or index of these types."""
    found: list[Any] = []
    for kind in _branches(kinds):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found += [field.annotation for name, field in kind.model_fields.items() if (field.alias or name) == part]
        elif get_origin(kind) is dict and isinstance(part, str):
            found.append(get_args(kind)[1])
        elif get_origin(kind) in (list, tuple) and isinstance(part, int):
            found.append(get_args(kind)[0])
    return found


def _keys_at(model: type[BaseModel], loc: Sequence[str | int]) -> list[str]:
    kinds: list[Any] = [model]
    for part in loc:
        kinds, _ = _step(kinds, part)
    return [
        field.alias or name
        for kind in _branches(kinds)
        if isinstance(kind, type) and issubclass(kind, BaseModel)
        for name, field in kind.model_fields.items()
    ]


def _describe(finding: Any) -> str:  # noqa: ANN401 - pydantic's ErrorDetails
    kind, value, context = finding["type"], finding["input"], finding.get("ctx", {})
    if kind == "missing":
        return "is required."
    if kind == "value_error":
        said = str(context["error"])
        return said if said.endswith((".", "?")) else f"{said}."
    if kind == "literal_error":
        allowed = re.findall(r"'([^']*)'", context["expected"])
        near = nearest(value, allowed) if isinstance(value, str) else None
        hint = f"; did you mean {near!r}?" if near else "."
        return f"must be {context['expected']}, not {_show(value)}{hint}"
    if finding["msg"].startswith("Input should be "):
        return f"must be {_rule(finding)}, not {_show(value)}."
    return f"{finding['msg']}."


def _rule(finding: Any) -> str:  # noqa: ANN401 - pydantic's ErrorDetails
    if finding["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return "a block"
    if finding["type"] == "value_error":
        return str(finding["ctx"]["error"]).rstrip(".")
    if finding["type"] == "tuple_type":
        return "a list"
    return str(finding["msg"]).removeprefix("Input should be ")


def _show(value: Any) -> str:  # noqa: ANN401 - any value
    if isinstance(value, Mapping):
        return "a block"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
