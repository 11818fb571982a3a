"""How faithful packed pictures are: some frames of every episode read back and compared with the episode's own."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.packing.frames import rgb_frames
from knonik_assets.packing.plan import PackPlan
from knonik_assets.packing.staging import Desk, Staging
from knonik_assets.packing.stored import PackedFile, open_packed
from knonik_loader.errors import DecodeError, EpisodeError
from knonik_loader.khlp.types import StreamInfo

__all__ = ["FRAMES_PER_EPISODE", "FidelityTask", "Sample", "compare", "luma_psnr", "tasks", "worst"]

FRAMES_PER_EPISODE = 3
_LUMA = np.array([0.299, 0.587, 0.114])


@dataclass(frozen=True, slots=True)
class Sample:
    """One frame to compare, and where it was packed."""

    frame: int
    file: str
    """Name."""
    shard: int
    row: int


@dataclass(frozen=True, slots=True)
class FidelityTask:
    """The samples of one episode."""

    staging: Staging
    episode: str
    """Name."""
    digest: bytes
    """Of its `knonik_assets.packing.facts.EpisodeFacts`."""
    streams: tuple[StreamInfo, ...]
    """RGB only."""
    samples: tuple[Sample, ...]


def tasks(plan: PackPlan, staging: Staging) -> list[FidelityTask]:
    """Which frames to compare: the same ones in every run.

    Args:
        plan: what was packed.
        staging: where the episodes and the KHLP files are.
    """
    streams = tuple(stream for stream in plan.streams if stream.kind == "rgb")
    if not streams:
        return []
    wanted = [_frames(episode.digest, episode.length) for episode in plan.episodes]
    samples: list[list[Sample]] = [[] for _ in plan.episodes]
    for file in plan.files:
        for number, shard in enumerate(file.shards):
            for frame in wanted[shard.episode]:
                if 0 <= frame - shard.first_frame < shard.frames:
                    place = Sample(frame, file.name, number, frame - shard.first_frame)
                    samples[shard.episode].append(place)
    return [
        FidelityTask(
            staging,
            episode.episode_id,
            episode.digest,
            streams,
            tuple(sorted(chosen, key=lambda sample: sample.frame)),
        )
        for episode, chosen in zip(plan.episodes, samples, strict=True)
    ]


def _frames(digest: bytes, length: int) -> list[int]:
    """Distinct frames of an episode, drawn by its digest."""
    frames: set[int] = set()
    for draw in range(FRAMES_PER_EPISODE):
        number = hashlib.sha256(b"fidelity" + digest + bytes([draw])).digest()
        frames.add(int.from_bytes(number[:8], "big") % length)
    return sorted(frames)


def compare(task: FidelityTask) -> dict[str, float]:
    """Luma PSNR in dB of one episode, by batch key, over its samples together; infinite where nothing differs.

    Raises:
        FormatError: what was packed does not read back.
        EpisodeError: the episode does not, or a picture that passed untouched does not decode.
    """

    def look(desk: Desk) -> dict[str, float]:
        with desk.episode(task.episode, task.digest, task.streams) as reader:
            return _compare(task, reader)

    return task.staging.work(task.episode, look)


def _compare(task: FidelityTask, reader: EpisodeReader) -> dict[str, float]:
    errors: dict[str, list[float]] = {stream.key: [] for stream in task.streams}
    with ExitStack() as stack:
        folder, names = task.staging.folder, {sample.file for sample in task.samples}
        packed = {name: stack.enter_context(open_packed(folder / name)) for name in names}
        for sample in task.samples:
            for stream in task.streams:
                try:
                    errors[stream.key].append(_error(reader, packed[sample.file], stream, sample))
                except (DecodeError, EpisodeError) as error:
                    raise EpisodeError(
                        f"{reader.path}, frame {sample.frame}: {str(error).rstrip('.')}; mend the episode, or leave it "
                        f"out with --exclude {reader.path.name}."
                    ) from error
    return {key: _decibel(sum(found) / len(found)) for key, found in errors.items()}


def _error(reader: EpisodeReader, packed: PackedFile, stream: StreamInfo, sample: Sample) -> float:
    """Mean squared difference of one sample's luma."""
    decoded = packed.frames(sample.shard, stream, [sample.row])[sample.row]
    start, stop = sample.frame, sample.frame + 1
    if stream.codec == "kimg":
        stored = next(reader.rgb_jpegs(stream.name, start, stop) or iter(()), None)
        if stored is not None and stored == packed.payload(sample.shard, stream, sample.row):
            return 0.0  # one picture, which decodes to the stream's size
    return _luma_error(next(rgb_frames(reader, stream, start, stop)), decoded)


def luma_psnr(one: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8]) -> float:
    """PSNR in dB of the luma of two (H, W, 3) pictures; infinite where they are equal."""
    return _decibel(_luma_error(one, other))


def _luma_error(one: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8]) -> float:
    """Mean squared difference of BT.601 luma."""
    return float(np.square((one.astype(np.float64) - other) @ _LUMA).mean())


def _decibel(error: float) -> float:
    return 10 * math.log10(255 * 255 / error) if error > 0 else math.inf


def worst(streams: Sequence[StreamInfo], found: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The lowest PSNR of each stream, rounded to 0.01 dB; streams that are equal everywhere are left out."""
    measured = list(found)
    lowest = {
        stream.key: min((episode[stream.key] for episode in measured if stream.key in episode), default=math.inf)
        for stream in streams
    }
    return {key: round(value, 2) for key, value in lowest.items() if math.isfinite(value)}
