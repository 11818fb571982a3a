"""From a user's mapping to a frozen model, with one error message for each mistake."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from knonik_loader.errors import ConfigError

__all__ = ["nearest", "plain", "validate"]

Model = TypeVar("Model", bound=BaseModel)


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name, " (did you mean 'x'?)", or an empty string where nothing is near."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def plain(value: Any) -> Any:  # noqa: ANN401 - any value of a config
    """The same as plain dicts, lists and numbers: config libraries and numpy bring containers of their own."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(item) for item in value]
    return value


def validate(model: type[Model], data: Mapping[str, Any], where: str) -> Model:
    """Build a model from a mapping.

    Args:
        model: the pydantic model.
        data: plain values.
        where: what the mapping is, for messages ("loader_cfg").

    Raises:
        ConfigError: the first mistakes, each with its key and place; unknown keys with the nearest known one.
    """
    for key in data:
        if not isinstance(key, str):
            raise ConfigError(f"{where}: keys are strings, got {key!r}")
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        problems = [_describe(model, detail, where) for detail in error.errors()[:3]]
        raise ConfigError("; ".join(problems)) from error


def _describe(model: type[BaseModel], detail: ErrorDetails, where: str) -> str:
    path = [str(part) for part in detail["loc"]]
    place = ".".join([where, *path])
    if detail["type"] == "extra_forbidden":
        return f"{where}: unknown key {path[-1]!r}{nearest(path[-1], model.model_fields)}"
    if detail["type"] == "missing" and isinstance(detail["loc"][-1], int):
        return f"{'.'.join([where, *path[:-1]])}: has {len(detail['input'])} items, which are too few"
    if detail["type"] == "missing":
        return f"{where}: the key {path[-1]!r} is required"
    if detail["type"] == "value_error":
        return f"{place}: {detail['ctx']['error']}"
    what, should, message = detail["msg"].partition(" should ")
    return f"{place}: {f'must {message}' if should else what}, got {detail['input']!r}"
