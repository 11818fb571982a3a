"""From bytes to frames: checks and decodes one task straight into the batches' final memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from knonik_loader.config_streams import LoadedStream
from knonik_loader.engine.cache import FrameCache, Frames
from knonik_loader.engine.dataset import Source
from knonik_loader.engine.fetch import DecodeTask, GroupWork
from knonik_loader.engine.reshape import PictureChange, change_rows
from knonik_loader.engine.work import BatchWork
from knonik_loader.errors import DecodeError, FormatError, KnonikError, reworded
from knonik_loader.khlp.codecs import dependency_of, make_codec
from knonik_loader.khlp.codecs.numeric import numeric_block
from knonik_loader.khlp.reader import check_payload
from knonik_loader.khlp.types import Codec, StreamInfo

__all__ = ["Decoder"]


class KeyedCodec(Protocol):
    """A codec whose frames refer to a key that the caller may have decoded already."""

    def decode(
        self,
        records: Mapping[int, memoryview],
        wanted: Sequence[int],
        out: Mapping[int, npt.NDArray[Any]],
        key: npt.NDArray[np.uint8] | None = None,
    ) -> None:
        """See `Codec`; with ``key``, the key's record is not needed."""
        ...


class Decoder:
    """What one decode thread works with; codecs keep scratch memory and decoder contexts, so each has its own."""

    def __init__(self, sources: Sequence[Source], verify: bool, cache: FrameCache | None = None) -> None:
        self._sources = sources
        self._verify = verify
        self._cache = cache
        self._codecs: dict[tuple[int, int], Codec] = {}
        self._changes: dict[tuple[int, int], PictureChange] = {}

    def run(self, task: DecodeTask) -> int:
        """Decode a task; a frame that fails is noted in the batches that want it, the others go on.

        Returns:
            Frames decoded.
        """
        frames = 0
        for group in task.groups:
            frames += self._run_group(group, task.works)
            group.records.clear()  # the bytes are of no use any more
        return frames

    def _run_group(self, group: GroupWork, works: Sequence[BatchWork]) -> int:
        try:
            if self._verify:
                self._check(group)
            if self._stream(group).kind == "numeric":
                self._copy_rows(group, works)
                return 0
            return self._decode(group, works)
        except KnonikError as error:
            parts = self._frame_by_frame(group)
            if parts:
                return sum(self._run_group(part, works) for part in parts)
            group.fail(works, error)
            return 0

    def _frame_by_frame(self, group: GroupWork) -> list[GroupWork]:
        """A group of which something failed as one group a frame, with what that frame alone needs; else nothing."""
        if self._stream(group).kind == "numeric" or (len(group.wanted) == 1 and group.cache_key is None):
            return []
        dependency = dependency_of(self._stream(group).codec)
        held = group.held or {}
        parts = []
        for row, dests in group.wanted:
            key = row - int(group.table.key_back[row])
            needed = {"none": [row], "key": sorted({key, row}), "chain": list(range(key, row + 1))}[dependency]
            rows = [need for need in needed if need not in held]
            records = {need: group.records[need] for need in rows}
            parts.append(dataclasses.replace(group, rows=rows, wanted=[(row, dests)], records=records, cache_key=None))
        return parts

    def _check(self, group: GroupWork) -> None:
        """Hold payloads against their checksums.

        What came over a network is asked for once more: a wire or a proxy may have done the damage.
        """
        for row in group.rows:
            try:
                self._check_row(group, row)
            except FormatError as error:
                dataset = self._sources[group.dataset].dataset
                if not dataset.storage.remote:
                    raise reworded(error, f"{self._where(group, row)}{error}") from None
                key = dataset.hlp_key(int(dataset.index.shards.hlp[group.shard_row]))
                place = (int(group.table.offsets[row]), int(group.table.sizes[row]))
                group.records[row] = dataset.storage.read_ranges(key, [place])[0]
                try:
                    self._check_row(group, row)
                except FormatError as again:
                    raise reworded(again, f"{self._where(group, row)}{again} (read twice from {key})") from None

    @staticmethod
    def _check_row(group: GroupWork, row: int) -> None:
        check_payload(group.records[row], int(group.table.sizes[row]), int(group.table.crcs[row]), "")

    def _decode(self, group: GroupWork, works: Sequence[BatchWork]) -> int:
        codec, change = self._codec(group), self._change(group)
        final: dict[int, npt.NDArray[Any]] = {}
        for row, dests in group.wanted:
            slot, at = dests[0]
            final[row] = works[slot].flat[group.stream][at]
        out = final
        if change is not None and not change.direct:
            out = dict(zip(final, change.scratch(len(final)), strict=True))
        try:
            count = self._fill(codec, group, out, works[-1].plan.step)
        except DecodeError as error:
            raise DecodeError(f"{self._where(group, group.wanted[0][0])}: {error}") from error
        if change is not None and not change.direct:
            for row, frame in out.items():
                change.write(frame, final[row])
        for row, dests in group.wanted:
            for slot, at in dests[1:]:
                works[slot].flat[group.stream][at] = final[row]
        return count

    def _fill(self, codec: Codec, group: GroupWork, out: Mapping[int, npt.NDArray[Any]], step: int) -> int:
        """Decode into ``out``, by way of the cache where there is one; gives the frames decoded."""
        if group.cache_key is None and group.held is None:
            codec.decode(group.records, list(out), out)
            return len(group.rows)
        held, count = group.held, 0
        if held is None:
            held = self._keep(codec, group, next(iter(out.values())), step)
            count = len(held)
        for row in out.keys() & held.keys():
            np.copyto(out[row], held[row])
        rest = [row for row in out if row not in held]
        if rest:
            # Only frames that refer to a key are left: of a chain, all are held.
            key = held[min(held)]
            cast("KeyedCodec", codec).decode(group.records, rest, out, key=key)
        return count + len(rest)

    def _keep(self, codec: Codec, group: GroupWork, like: npt.NDArray[Any], step: int) -> Frames:
        """Decode what the cache is to hold of a group: its key, or all frames of its chain."""
        chain = dependency_of(self._stream(group).codec) == "chain"
        frames = {row: np.empty_like(like) for row in (group.rows if chain else group.rows[:1])}
        codec.decode({row: group.records[row] for row in frames}, list(frames), frames)
        if self._cache is not None and group.cache_key is not None:
            self._cache.put(group.cache_key, frames, group.cache_end, step)
        return frames

    def _copy_rows(self, group: GroupWork, works: Sequence[BatchWork]) -> None:
        stream = self._stream(group)
        try:
            block = numeric_block(group.records[0], stream.shape[0])
        except DecodeError as error:
            raise DecodeError(f"{self._where(group, group.wanted[0][0])}: {error}") from error
        bound = self._bound(group)
        rows, slots, at = zip(*((row, *dest) for row, dests in group.wanted for dest in dests), strict=True)
        if rows[-1] >= len(block):
            raise DecodeError(f"{self._where(group, rows[-1])}: the block has {len(block)} rows only.")
        values = block[list(rows)] if bound is None else change_rows(bound, block[list(rows)])
        if slots.count(slots[0]) == len(slots):  # as whenever batches are read one by one
            works[slots[0]].flat[group.stream][list(at)] = values
            return
        owners, places = np.array(slots), np.array(at)
        for slot in dict.fromkeys(slots):
            mine = owners == slot
            works[slot].flat[group.stream][places[mine]] = values[mine]

    def _codec(self, group: GroupWork) -> Codec:
        place = (group.dataset, group.stream)
        codec = self._codecs.get(place)
        if codec is None:
            codec = self._codecs[place] = make_codec(self._stream(group))
        return codec

    def _bound(self, group: GroupWork) -> LoadedStream | None:
        """What becomes of the stream, where it doesn't stay as it is stored."""
        bound = self._sources[group.dataset].bound
        return bound[group.stream] if bound and bound[group.stream].changed else None

    def _change(self, group: GroupWork) -> PictureChange | None:
        bound, place = self._bound(group), (group.dataset, group.stream)
        if bound is None:
            return None
        change = self._changes.get(place)
        if change is None:
            change = self._changes[place] = PictureChange(bound, self._codec(group))
        return change

    def _stream(self, group: GroupWork) -> StreamInfo:
        return self._sources[group.dataset].streams[group.stream]

    def _where(self, group: GroupWork, row: int) -> str:
        dataset, stream = self._sources[group.dataset].dataset, self._stream(group)
        first = int(dataset.index.shards.first_frame[group.shard_row])
        if stream.kind == "numeric":
            row = group.wanted[0][0]
        return f"{dataset.where(group.shard_row)}, stream {stream.key!r}, frame {first + row}"
