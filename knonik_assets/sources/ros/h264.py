"""What H.264 messages are, told by their headers (ITU-T H.264, 7.3 and 9.1) without decoding a picture."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

__all__ = ["START_CODE", "H264Look"]

START_CODE = re.compile(rb"\x00\x00\x01")
_SLICE, _KEY, _SPS = 1, 5, 7
_B_SLICES = (1, 6)
_WITH_CHROMA = frozenset({44, 83, 86, 100, 110, 118, 122, 128, 134, 135, 138, 139, 244})
_HEAD = 400
"""Bytes of a unit in which what is looked for stands."""


class _Bits:
    def __init__(self, data: bytes) -> None:
        plain = data.replace(b"\x00\x00\x03", b"\x00\x00")
        self._bits = "".join(f"{byte:08b}" for byte in plain)
        self._at = 0

    def take(self, count: int) -> int:
        self._at += count
        if self._at > len(self._bits):
            raise ValueError("the unit is too short")
        return int(self._bits[self._at - count : self._at] or "0", 2)

    def number(self) -> int:
        """An Exp-Golomb number."""
        one = self._bits.find("1", self._at)
        if one < 0:
            raise ValueError("the unit is too short")
        zeros = one - self._at
        self._at = one
        return self.take(zeros + 1) - 1

    def signed(self) -> int:
        value = self.number()
        return (value + 1) // 2 if value % 2 else -(value // 2)


@dataclass(slots=True)
class H264Look:
    """Tells which messages hold a picture, whether pictures change places, and where messages are missing."""

    kinds: list[int] = field(default_factory=list)
    """Of every message: 0 no picture, 1 a picture, 2 a picture that depends on no other."""
    reordered: bool = False
    _counts: list[int] = field(default_factory=list)
    """Of every message, its picture's frame_num; negative where it isn't known or doesn't count."""
    _is_reference: list[bool] = field(default_factory=list)
    _counter_bits: int = 0
    """Of frame_num; 0 where no parameter set was met yet, or where it may have gaps."""
    _separate_planes: bool = False

    def add(self, data: bytes | memoryview) -> None:
        """Look at the next message (Annex B)."""
        raw = bytes(data)
        found, count, reference = 0, -1, False
        for match in START_CODE.finditer(raw):
            at = match.end()
            head = raw[at : at + 1]
            kind = head[0] & 31 if head else 0
            try:
                if kind == _SPS:
                    self._parameters(_Bits(raw[at + 1 : at + _HEAD]))
                elif kind in (_SLICE, _KEY):
                    shape, number = self._slice(_Bits(raw[at + 1 : at + 24]))
                    self.reordered |= shape in _B_SLICES
                    if not found:
                        count, reference = number, bool(head[0] & 0x60)
                    found = max(found, 2 if kind == _KEY else 1)
            except ValueError:
                found = max(found, 1 if kind in (_SLICE, _KEY) else 0)
        self.kinds.append(found)
        self._counts.append(count)
        self._is_reference.append(reference)

    def _slice(self, bits: _Bits) -> tuple[int, int]:
        """slice_type and frame_num."""
        bits.number()
        shape = bits.number()
        bits.number()
        if self._separate_planes:
            bits.take(2)
        return shape, bits.take(self._counter_bits) if self._counter_bits else -1

    def _parameters(self, bits: _Bits) -> None:
        profile = bits.take(8)
        bits.take(16)
        bits.number()
        self._separate_planes = False
        if profile in _WITH_CHROMA:
            chroma = bits.number()
            if chroma == 3:
                self._separate_planes = bool(bits.take(1))
            bits.number()
            bits.number()
            bits.take(1)
            if bits.take(1):
                for place in range(12 if chroma == 3 else 8):
                    if bits.take(1):
                        _pass_scaling(bits, 16 if place < 6 else 64)
        counter = bits.number() + 4
        kind = bits.number()
        if kind == 0:
            bits.number()
        elif kind == 1:
            bits.take(1)
            bits.signed()
            bits.signed()
            for _ in range(bits.number()):
                bits.signed()
        bits.number()
        self._counter_bits = 0 if bits.take(1) else counter

    def order(self, sequence: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], int] | None:
        """Messages with a picture in order of presentation, and how many before the first keyframe are lost.

        None where only decoding can tell, as pictures change places or no picture stands alone.

        Args:
            sequence: numbers of the messages in the order in which they are to be decoded.
        """
        kinds = np.array(self.kinds)[sequence]
        keys = np.flatnonzero(kinds == 2)
        if self.reordered or not len(keys):
            return None
        start = keys[0]
        return sequence[start:][kinds[start:] > 0], int((kinds[:start] > 0).sum())

    def gaps(self, sequence: npt.NDArray[np.int64]) -> tuple[int, npt.NDArray[np.int64]]:
        """How often the count of pictures shows that messages are missing in between, and what that spoils.

        Args:
            sequence: as for `order`.

        Returns:
            The number of gaps, and the messages from each of them to the next keyframe: decoders fill a gap with what
            they have, and say nothing.
        """
        before, found, whole = -1, 0, True
        spoilt = []
        for number in sequence.tolist():
            count, kind = self._counts[number], self.kinds[number]
            if kind == 2:
                whole = True
            elif (
                kind and count >= 0 and before >= 0 and count not in (before, (before + 1) % (1 << self._counter_bits))
            ):
                found, whole = found + 1, False
            if kind and not whole:
                spoilt.append(number)
            if kind and (kind == 2 or count < 0 or self._is_reference[number]):
                before = count
        return found, np.array(spoilt, np.int64)


def _pass_scaling(bits: _Bits, size: int) -> None:
    last = following = 8
    for _ in range(size):
        if following:
            following = (last + bits.signed()) % 256
        last = following or last
