"""What ``features.json`` says of a TFDS dataset: the leaves of a step and of an episode's metadata."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from knonik_loader.errors import SourceError

__all__ = ["Feature", "leaves", "parse_features"]

_DEEPEST = 24


@dataclass(frozen=True, slots=True)
class Feature:
    """One leaf."""

    kind: Literal["tensor", "image", "text", "other"]
    dtype: str
    shape: tuple[int | None, ...] | None
    """None where it isn't told; None inside for an axis that varies."""
    encoding: Literal["none", "zlib", "bytes"] = "none"
    ragged: bool = False
    """Whether it stands inside a sequence inside a step."""

    @property
    def size(self) -> int | None:
        """Numbers of one value; None where that varies."""
        if self.shape is None or any(side is None for side in self.shape):
            return None
        return math.prod(side for side in self.shape if side is not None)

    @property
    def numpy(self) -> np.dtype[Any] | None:
        """Its type in NumPy; None where there is none."""
        try:
            return np.dtype(self.dtype)
        except TypeError:
            return None


def parse_features(document: Mapping[str, Any], where: str) -> tuple[dict[str, Feature], dict[str, Feature]]:
    """Leaves of a step and leaves of the episode, by their names with slashes.

    Raises:
        SourceError: there are no steps: a TFDS dataset, but not of robot episodes.
    """
    top = _children(document)
    steps = top.get("steps")
    inner = _sequence(steps) if steps is not None else None
    if inner is None:
        raise SourceError(
            f"{where}: no RLDS dataset: it has no 'steps', but: {', '.join(list(top)[:12]) or 'nothing'}."
        )
    of_steps = dict(leaves(inner, ""))
    of_episode = {name: leaf for key, value in top.items() if key != "steps" for name, leaf in leaves(value, key)}
    return of_steps, of_episode


def _children(feature: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    block = feature.get("featuresDict")
    found = block.get("features") if isinstance(block, dict) else None
    return {name: one for name, one in found.items() if isinstance(one, dict)} if isinstance(found, dict) else {}


def _sequence(feature: Mapping[str, Any]) -> Mapping[str, Any] | None:
    block = feature.get("sequence")
    inner = block.get("feature") if isinstance(block, dict) else None
    return inner if isinstance(inner, dict) else None


def leaves(
    feature: Mapping[str, Any], name: str, ragged: bool = False, depth: int = 0
) -> Iterator[tuple[str, Feature]]:
    """Every leaf below a feature by its name."""
    if depth > _DEEPEST:
        return
    children = _children(feature)
    if children:
        for key, child in children.items():
            yield from leaves(child, f"{name}/{key}" if name else key, ragged, depth + 1)
        return
    inner = _sequence(feature)
    if inner is not None:
        yield from leaves(inner, name, True, depth + 1)
        return
    yield name, _leaf(feature, ragged)


def _leaf(feature: Mapping[str, Any], ragged: bool) -> Feature:
    image = feature.get("image")
    if isinstance(image, dict):
        return Feature("image", str(image.get("dtype") or "uint8"), _shape(image), ragged=ragged)
    if "text" in feature:
        return Feature("text", "string", (), ragged=ragged)
    tensor = feature.get("tensor")
    if isinstance(tensor, dict):
        dtype = str(tensor.get("dtype") or "float32")
        encoding = str(tensor.get("encoding") or "none").lower()
        if dtype in ("string", "object"):
            return Feature("text", "string", _shape(tensor), ragged=ragged)
        if encoding in ("zlib", "bytes"):
            return Feature("tensor", dtype, _shape(tensor), encoding, ragged)  # type: ignore[arg-type]
        return Feature("tensor", dtype, _shape(tensor), ragged=ragged)
    if "classLabel" in feature:
        return Feature("tensor", "int64", (), ragged=ragged)
    if "boundingBox" in feature:
        return Feature("tensor", "float32", (4,), ragged=ragged)
    return Feature("other", "", None, ragged=ragged)


def _shape(block: Mapping[str, Any]) -> tuple[int | None, ...] | None:
    """Sides as JSON's texts of integers; -1 is one that varies. Without dimensions: a single value."""
    shape = block.get("shape")
    sides = shape.get("dimensions", []) if isinstance(shape, dict) else None
    if not isinstance(sides, list):
        return None
    try:
        numbers = [int(side) for side in sides]
    except (TypeError, ValueError):
        return None
    return tuple(side if side >= 0 else None for side in numbers)
