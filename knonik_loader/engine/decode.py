"""From bytes to frames: checks and decodes one task straight into the batches' final memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from knonik_loader.engine.dataset import Source
from knonik_loader.engine.fetch import DecodeTask, GroupWork
from knonik_loader.engine.work import BatchWork
from knonik_loader.errors import DecodeError, FormatError, KnonikError
from knonik_loader.khlp.codecs import make_codec
from knonik_loader.khlp.codecs.numeric import numeric_block
from knonik_loader.khlp.reader import check_payload
from knonik_loader.khlp.types import Codec, StreamInfo

__all__ = ["Decoder"]


class Decoder:
    """What one decode thread works with; codecs keep scratch memory and decoder contexts, so each has its own."""

    def __init__(self, sources: Sequence[Source], verify: bool) -> None:
        self._sources = sources
        self._verify = verify
        self._codecs: dict[tuple[int, int], Codec] = {}

    def run(self, task: DecodeTask) -> int:
        """Decode a task; a group that fails is noted in the batches that want it, the others go on.

        Returns:
            Frames decoded.
        """
        frames = 0
        for group in task.groups:
            try:
                if self._verify:
                    self._check(group)
                if self._stream(group).kind == "numeric":
                    self._copy_rows(group, task.works)
                else:
                    frames += self._decode(group, task.works)
            except KnonikError as error:
                for slot in {slot for _, dests in group.wanted for slot, _ in dests}:
                    task.works[slot].failures.append((group.first, error))
            group.records.clear()  # the bytes are of no use any more
        return frames

    def _check(self, group: GroupWork) -> None:
        table = group.table
        for row in group.rows:
            try:
                check_payload(group.records[row], int(table.sizes[row]), int(table.crcs[row]), "")
            except FormatError as error:
                raise type(error)(f"{self._where(group, row)}{error}") from None

    def _decode(self, group: GroupWork, works: Sequence[BatchWork]) -> int:
        place = (group.dataset, group.stream)
        codec = self._codecs.get(place)
        if codec is None:
            codec = self._codecs[place] = make_codec(self._stream(group))
        out: dict[int, npt.NDArray[Any]] = {}
        for row, dests in group.wanted:
            slot, at = dests[0]
            out[row] = works[slot].flat[group.stream][at]
        try:
            codec.decode(group.records, list(out), out)
        except DecodeError as error:
            raise DecodeError(f"{self._where(group, group.wanted[0][0])}: {error}") from error
        for row, dests in group.wanted:
            for slot, at in dests[1:]:
                works[slot].flat[group.stream][at] = out[row]
        return len(group.rows)

    def _copy_rows(self, group: GroupWork, works: Sequence[BatchWork]) -> None:
        stream = self._stream(group)
        try:
            block = numeric_block(group.records[0], stream.shape[0])
        except DecodeError as error:
            raise DecodeError(f"{self._where(group, group.wanted[0][0])}: {error}") from error
        rows = [row for row, dests in group.wanted for _ in dests]
        if rows[-1] >= len(block):
            raise DecodeError(f"{self._where(group, rows[-1])}: the block has {len(block)} rows only.")
        dests = [dest for _, places in group.wanted for dest in places]
        for slot in {slot for slot, _ in dests}:
            mine = [number for number, dest in enumerate(dests) if dest[0] == slot]
            at = np.array([dests[number][1] for number in mine])
            works[slot].flat[group.stream][at] = block[[rows[number] for number in mine]]

    def _stream(self, group: GroupWork) -> StreamInfo:
        return self._sources[group.dataset].streams[group.stream]

    def _where(self, group: GroupWork, row: int) -> str:
        dataset, stream = self._sources[group.dataset].dataset, self._stream(group)
        first = int(dataset.index.shards.first_frame[group.shard_row])
        if stream.kind == "numeric":
            row = group.wanted[0][0]
        return f"{dataset.where(group.shard_row)}, stream {stream.key!r}, frame {first + row}"
