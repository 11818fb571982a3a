"""Pickles of plain data: numbers, text, lists, dicts and NumPy arrays. Nothing in them is ever run.

Names in a pickle are looked up in a table of stand-ins that only take notes; arrays are built from those notes
afterwards, by NumPy's checked constructors. Python's own reader is used, not the faster one in C, which takes memory
for whatever length a damaged file claims.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from knonik_assets.sources.arrays import bounded
from knonik_loader.errors import EpisodeError

__all__ = ["load_pickle"]

_FAULTS = (
    pickle.UnpicklingError, EOFError, OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, ImportError,
    OverflowError, AssertionError, RecursionError, UnicodeError, MemoryError,
)  # fmt: skip
_SPEC = re.compile(r"[|<>=]?(?:[biufc?]\d{0,2}|[SU]\d{1,6}|O\d?)")
_DEEPEST = 64
_MOST_VALUES = 1 << 22


class _Dtype:
    """A note of ``dtype(spec, …)`` and its state."""

    def __init__(self, spec: object, *_: object) -> None:
        if not isinstance(spec, str) or not _SPEC.fullmatch(spec):
            raise pickle.UnpicklingError(f"an array of type {str(spec)[:40]!r}")
        self._spec = spec
        self._order: Literal["<", ">", "|"] = "|"

    def __setstate__(self, state: object) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else ""
        if order == "<":
            self._order = "<"
        elif order == ">":
            self._order = ">"

    def build(self) -> np.dtype[Any]:
        """The type itself."""
        return np.dtype(self._spec).newbyteorder(self._order)


class _Array:
    """A note of an array's state."""

    def __init__(self, *_: object) -> None:
        self._state: tuple[Any, ...] = ()

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) < 4:
            raise pickle.UnpicklingError("an array without a state")
        self._state = state[-4:]

    def build(self) -> npt.NDArray[Any]:
        """The array itself."""
        if not self._state:
            raise pickle.UnpicklingError("an array without a state")
        shape, dtype, fortran, raw = self._state
        return _array(raw, dtype, shape, "F" if fortran else "C")


class _Buffer(_Array):
    """A note of an array that was pickled out of its own memory (protocol 5)."""

    def __init__(self, raw: object, dtype: object, shape: object, order: object = "C") -> None:
        super().__init__()
        self._state = (shape, dtype, order == "F", raw)


class _Scalar:
    """A note of one number."""

    def __init__(self, dtype: object, raw: object = b"") -> None:
        self._dtype, self._raw = dtype, raw

    def build(self) -> Any:  # noqa: ANN401 - a number or text
        """The number itself."""
        return _array(self._raw, self._dtype, (1,), "C")[0].item()


def _array(raw: object, dtype: object, shape: object, order: str) -> npt.NDArray[Any]:
    sides = shape if isinstance(shape, tuple) else (shape,)
    if not isinstance(dtype, _Dtype) or not all(isinstance(side, int) and 0 <= side < 1 << 40 for side in sides):
        raise pickle.UnpicklingError(f"an array of shape {str(shape)[:80]}")
    kind = dtype.build()
    if kind.hasobject:
        if not isinstance(raw, list) or len(raw) != math.prod(sides):
            raise pickle.UnpicklingError("an array of objects without them")
        objects = np.empty(len(raw), object)
        for place, value in enumerate(raw):
            objects[place] = value
        return objects.reshape(sides)
    if isinstance(raw, str):  # bytes as Python 2 wrote them
        raw = raw.encode("latin1")
    if not isinstance(raw, (bytes, bytearray)) or len(raw) != math.prod(sides) * kind.itemsize:
        raise pickle.UnpicklingError(f"an array of shape {sides} with the wrong number of bytes")
    return np.frombuffer(bytes(raw), kind).reshape(sides, order="F" if order == "F" else "C")


def _text_as_bytes(text: object, encoding: object = "latin1") -> bytes:
    """What Python 2's text of bytes is pickled as."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError("bytes in an unknown encoding")
    return text.encode("latin1")


def _bytearray(raw: object = b"", encoding: object = "latin1") -> bytearray:
    """A byte array of given bytes, never of a given length."""
    if isinstance(raw, str):
        raw = _text_as_bytes(raw, encoding)
    if not isinstance(raw, (bytes, bytearray)):
        raise pickle.UnpicklingError("a byte array without bytes")
    return bytearray(raw)


def _no_bytes() -> bytes:
    """How old protocols spell no bytes at all."""
    return b""


_BUILTINS = ("builtins", "__builtin__")
_CORES = ("numpy.core", "numpy._core")
_KNOWN: Mapping[tuple[str, str], Callable[..., Any]] = {
    **{(f"{core}.multiarray", "_reconstruct"): _Array for core in _CORES},
    **{(f"{core}.multiarray", "scalar"): _Scalar for core in _CORES},
    **{(f"{core}.numeric", "_frombuffer"): _Buffer for core in _CORES},
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _text_as_bytes,
    ("collections", "OrderedDict"): dict,
    **{(module, "bytearray"): _bytearray for module in _BUILTINS},
    **{(module, "bytes"): _no_bytes for module in _BUILTINS},
    **{(module, "set"): set for module in _BUILTINS},
}


class _Reader(pickle._Unpickler):
    """Python's reader with `_KNOWN` as its whole world."""

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)
    stack: list[Any]
    read: Callable[[int], bytes]
    append: Callable[[Any], None]

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - a stand-in
        """The stand-in for a name, refused where there is none."""
        found = _KNOWN.get((module, name))
        if found is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is no plain data and is not run")
        return found

    def load_bytearray8(self) -> None:
        """Read before memory is taken for what is claimed."""
        claimed = int.from_bytes(self.read(8), "little")
        data = self.read(claimed)
        if len(data) != claimed:
            raise EOFError("cut off")
        self.append(bytearray(data))

    def load_build(self) -> None:
        """State is taken by stand-ins alone."""
        state = self.stack.pop()
        if not isinstance(self.stack[-1], (_Array, _Dtype)):
            raise pickle.UnpicklingError("state for something that is no array")
        self.stack[-1].__setstate__(state)

    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8
    for _code in (pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.PERSID, pickle.BINPERSID, pickle.NEXT_BUFFER):
        dispatch.pop(_code[0], None)


class _Finisher:
    """Turns the notes in a value into arrays; shared parts are counted every time, so that they can't multiply."""

    def __init__(self) -> None:
        self._left = _MOST_VALUES
        self._arrays: dict[int, Any] = {}

    def finish(self, value: Any, depth: int = 0) -> Any:  # noqa: ANN401 - plain data
        """A value with arrays in place of notes."""
        self._left -= 1
        if depth > _DEEPEST or self._left < 0:
            raise pickle.UnpicklingError("data nested too deeply, or too much of it")
        if isinstance(value, (_Array, _Scalar, _Dtype)):
            if id(value) not in self._arrays:
                self._arrays[id(value)] = self.finish(value.build(), depth + 1)
            return self._arrays[id(value)]
        if isinstance(value, np.ndarray) and value.dtype.hasobject:
            for place, one in enumerate(value.flat):
                value.flat[place] = self.finish(one, depth + 1)
        elif isinstance(value, dict):
            return {self.finish(key, depth + 1): self.finish(one, depth + 1) for key, one in value.items()}
        elif isinstance(value, (list, tuple)):
            return type(value)(self.finish(one, depth + 1) for one in value)
        return value


def load_pickle(data: bytes, where: str) -> Any:  # noqa: ANN401 - plain data
    """The plain data of a pickle.

    Raises:
        EpisodeError: damaged, absurdly large, or not plain data.
    """
    bounded(len(data), where)
    try:
        return _Finisher().finish(_Reader(io.BytesIO(data), encoding="latin1").load())
    except _FAULTS as error:
        reason = str(error) or type(error).__name__
        raise EpisodeError(f"{where}: not a readable pickle of plain data: {reason[:300]}.") from error
