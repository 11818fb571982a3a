"""What every codec must keep, as a test class to subclass.

    class TestMyCodec(CodecContract):
        info = StreamInfo(...)

        def frames(self): ...

Run with pytest; nothing here imports it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from knonik_loader.errors import DecodeError, PackError
from knonik_loader.khlp.codecs import dependency_of, make_codec
from knonik_loader.khlp.planning import closure
from knonik_loader.khlp.reader import RecordTable
from knonik_loader.khlp.types import FrameInput, Record, StreamInfo

__all__ = ["CodecContract", "awkward_scenes", "decode_rows", "record_table"]

Array = npt.NDArray[Any]


def record_table(records: Sequence[Record]) -> RecordTable:
    """The index that a file with nothing but these records would have."""
    sizes = np.array([len(record.data) for record in records], np.uint32)
    return RecordTable(
        offsets=np.zeros(len(records), np.uint64),
        sizes=sizes,
        crcs=np.zeros(len(records), np.uint32),
        key_back=np.array([record.key_back for record in records], np.uint16),
        flags=np.array([int(record.intra) for record in records], np.uint16),
    )


def decode_rows(info: StreamInfo, records: Sequence[Record], wanted: Sequence[int], fill: int = 0xAB) -> list[Array]:
    """Decode rows of one shard as the engine does: group by group, with exactly the records that each one needs."""
    codec = make_codec(info)
    out = {row: np.full(info.shape, fill, info.dtype) for row in wanted}
    payloads = [memoryview(record.data) for record in records]
    if info.kind == "numeric":
        codec.decode({0: payloads[0]}, list(wanted), out)
    else:
        for group in closure(record_table(records), dependency_of(info.codec), wanted):
            rows = group.wanted.tolist()
            codec.decode({row: payloads[row] for row in group.rows.tolist()}, rows, {row: out[row] for row in rows})
    return [out[row] for row in wanted]


def awkward_scenes(frames: Sequence[Array]) -> dict[str, list[Array]]:
    """Scenes at which codecs of colour stumble, made of (H, W, 3) uint8 frames."""
    rng = np.random.default_rng(3)
    gains = 1 + 0.02 * np.sin(2.3 * np.arange(len(frames)))
    half = len(frames) // 2
    return {
        "flat": [np.full_like(frame, 128) for frame in frames],
        "black": [np.zeros_like(frame) for frame in frames],
        "white": [np.full_like(frame, 255) for frame in frames],
        "noise": [rng.integers(0, 256, frame.shape, np.uint8) for frame in frames],
        "frozen": [frames[0]] * len(frames),
        "cut": [*frames[:half], *(np.ascontiguousarray(frame[::-1, ::-1]) for frame in frames[half:])],
        "flash": [*frames[:half], np.full_like(frames[0], 250), *frames[half:]],
        "flicker": [
            np.clip(np.rint(frame * gain), 0, 255).astype(np.uint8) for frame, gain in zip(frames, gains, strict=True)
        ],
        "dark to bright": [(frame * (t / len(frames))).astype(np.uint8) for t, frame in enumerate(frames)],
    }


class CodecContract(ABC):
    """Subclass it, give `info` and `frames`, and say how close decoded frames must be."""

    info: ClassVar[StreamInfo]
    least_psnr: ClassVar[float] = 37.0
    """In dB over luma, of each colour frame; depth and numeric streams are lossless."""

    detects_cuts: ClassVar[bool] = True
    """Whether the decoder notices a record that ends early; otherwise only the index's sizes and checksums do."""

    @abstractmethod
    def frames(self) -> list[FrameInput]:
        """At least 12 frames of one shard, as the encoder takes them."""

    def expected(self, frame: FrameInput) -> Array:
        """What a frame should decode to, or be close to."""
        assert not isinstance(frame, bytes), "a contract that passes JPEGs through says what they decode to"
        return frame

    def check(self, row: int, decoded: Array, frame: FrameInput) -> None:
        """Fail unless a decoded frame is near enough to what was encoded."""
        expected = self.expected(frame)
        if self.info.kind != "rgb":
            np.testing.assert_array_equal(decoded, expected, err_msg=f"row {row}")
            return
        luma = (decoded.astype(float) - expected) @ np.array([0.299, 0.587, 0.114])
        psnr = 10 * np.log10(255**2 / max(float(np.mean(luma**2)), 1e-9))
        assert psnr >= self.least_psnr, f"row {row}: PSNR-Y {psnr:.1f} dB, wanted {self.least_psnr}"

    def test_a_record_a_frame_and_keys_that_exist(self) -> None:
        """Numeric streams have one block; others one record a frame, whose key is a key of the same shard."""
        frames = self.frames()
        records = make_codec(self.info).encode(frames)
        assert len(records) == (1 if self.info.kind == "numeric" else len(frames))
        for row, record in enumerate(records):
            assert 0 <= record.key_back <= row
            assert records[row - record.key_back].key_back == 0

    def test_frames_come_back(self) -> None:
        """In order, each near to what was encoded."""
        frames = self.frames()
        records = make_codec(self.info).encode(frames)
        for row, decoded in enumerate(decode_rows(self.info, records, range(len(frames)))):
            self.check(row, decoded, frames[row])

    def test_short_shards_come_back(self) -> None:
        """The last shard of an episode may have a frame only; and an empty one is no error."""
        frames = self.frames()
        for count in (1, 2, 3):
            records = make_codec(self.info).encode(frames[:count])
            for row, decoded in enumerate(decode_rows(self.info, records, range(count))):
                self.check(row, decoded, frames[row])
        assert all(not record.data for record in make_codec(self.info).encode([]))

    def test_awkward_scenes_come_back(self) -> None:
        """Near to what was encoded, and bit for bit the same from any choice of rows; of colour streams only."""
        frames = [frame for frame in self.frames() if self.info.kind == "rgb" and not isinstance(frame, bytes)]
        for name, scene in awkward_scenes(frames).items() if frames else ():
            records = make_codec(self.info).encode(scene)
            whole = decode_rows(self.info, records, range(len(scene)))
            for row, decoded in enumerate(whole):
                if name == "noise":  # nothing compresses it; that it is no other frame is enough
                    assert np.corrcoef(decoded.ravel(), scene[row].ravel())[0, 1] > 0.5, f"row {row}"
                else:
                    self.check(row, decoded, scene[row])
            for row in range(0, len(scene), 3):
                (alone,) = decode_rows(self.info, records, [row], fill=1)
                np.testing.assert_array_equal(alone, whole[row], err_msg=f"{name}, row {row}")

    def test_any_choice_of_rows_gives_the_same_frames(self) -> None:
        """Bit for bit, whatever was decoded before and whatever the memory held."""
        frames = self.frames()
        count = len(frames)
        records = make_codec(self.info).encode(frames)
        whole = decode_rows(self.info, records, range(count))
        rng = np.random.default_rng(0)
        choices = [[row] for row in range(count)]
        choices += [sorted(rng.choice(count, size, replace=False).tolist()) for size in (2, 3, count // 2) * 2]
        for rows in choices:
            for row, decoded in zip(rows, decode_rows(self.info, records, rows, fill=1), strict=True):
                np.testing.assert_array_equal(decoded, whole[row], err_msg=f"row {row} of {rows}")

    def test_the_same_frames_give_the_same_bytes(self) -> None:
        """From one codec twice, and from another one."""
        codec = make_codec(self.info)
        first = codec.encode(self.frames())
        assert codec.encode(self.frames()) == first
        assert make_codec(self.info).encode(self.frames()) == first

    def test_a_missing_record_is_an_error(self) -> None:
        """And never a frame of something else."""
        records = make_codec(self.info).encode(self.frames())
        out = np.zeros(self.info.shape, self.info.dtype)
        for row, record in enumerate(records):
            if record.key_back:
                self._must_fail({row: memoryview(record.data)}, row, out)
        self._must_fail({}, 1, out)

    def test_cut_off_records_are_errors(self) -> None:
        """At the beginning, in the middle and one byte before the end."""
        frames = self.frames()
        data = make_codec(self.info).encode(frames)[0].data
        sizes = (0, 1, 3, len(data) // 2, len(data) - 1) if self.detects_cuts else (0, 1, 3)
        # a numeric block holds all rows: what is cut off is the last one
        row = len(frames) - 1 if self.info.kind == "numeric" else 0
        out = np.zeros(self.info.shape, self.info.dtype)
        for size in sizes:
            self._must_fail({0: memoryview(data)[:size]}, row, out)

    def test_flipped_bytes_never_crash(self) -> None:
        """A record that no checksum protected gives a frame of the right shape or a DecodeError."""
        records = make_codec(self.info).encode(self.frames())
        table = record_table(records)
        rng = np.random.default_rng(1)
        codec = make_codec(self.info)
        last = max(range(len(records)), key=lambda row: records[row].key_back)
        (group,) = closure(table, dependency_of(self.info.codec), [last])
        out = np.zeros(self.info.shape, self.info.dtype)
        clean = {row: memoryview(records[row].data) for row in group.rows.tolist()}
        codec.decode(clean, [last], {last: out})
        before = out.copy()
        for _ in range(60):
            damaged = bytearray(records[last].data)
            damaged[rng.integers(len(damaged))] ^= 1 << int(rng.integers(8))
            try:
                codec.decode({**clean, last: memoryview(damaged)}, [last], {last: out})
            except DecodeError:
                continue
        # whatever the codec went through, it decodes the next group as if nothing had been
        codec.decode(clean, [last], {last: out})
        np.testing.assert_array_equal(out, before)

    def test_frames_of_another_shape_are_refused(self) -> None:
        """By the encoder, naming what it wanted."""
        wrong = np.zeros((3, *self.info.shape), self.info.dtype)
        try:
            make_codec(self.info).encode([wrong])
        except PackError as error:
            assert self.info.key in str(error)  # noqa: PT017 - pytest is not a dependency of this module
        else:
            raise AssertionError(f"{self.info.codec} encoded a frame of {wrong.shape}")

    def _must_fail(self, records: dict[int, memoryview], row: int, out: Array) -> None:
        try:
            make_codec(self.info).decode(records, [row], {row: out})
        except DecodeError:
            return
        raise AssertionError(
            f"{self.info.codec} decoded row {row} from {[len(data) for data in records.values()]} bytes"
        )
