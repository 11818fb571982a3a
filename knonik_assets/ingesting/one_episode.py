"""One episode from the source to its directory: what a worker does."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from knonik_assets.configs.ingest import IngestConfig
from knonik_assets.episodes.metadata import METADATA, EpisodeMetadata
from knonik_assets.episodes.remote import publish_remote
from knonik_assets.episodes.writer import EpisodeWriter
from knonik_assets.ingesting.facts import Length, about, clock, common_length, language, nominal_fps
from knonik_assets.ingesting.fingerprints import Entries, FileDigests
from knonik_assets.ingesting.pictures import Pictures
from knonik_assets.ingesting.progress import FrameCount, progress_folder
from knonik_assets.ingesting.report import EpisodeOutcome
from knonik_assets.sources.base import EpisodeRef, Source, SourceEpisode
from knonik_assets.sources.guarded import remote_source
from knonik_assets.sources.registry import open_source
from knonik_assets.storage import ObjectFolder, Place, Scratch, check_lease
from knonik_loader.errors import EpisodeError, KnonikError, StorageError, refusal

__all__ = ["EpisodeResult", "EpisodeTask", "ingest_episode"]

_FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True, slots=True)
class EpisodeTask:
    """Everything that a worker needs to know; picklable."""

    config: IngestConfig
    root: str
    out: str
    ref: EpisodeRef
    episode_id: str
    config_fingerprint: str
    fingerprint: str | None
    """Of the source's episode, where the driver knows it already."""
    threads: int
    """Streams of pictures worked on at once."""
    cores: int = 1
    """Threads that check pictures which pass as they are: other episodes in work wait for the disk at times."""
    standing: tuple[str, int] | None = None
    """Source fingerprint and length of what stands in OUT, whole and of this config: if the source is still the same,
    nothing is to be done."""
    publish: str | None = None
    """URL of the output, where that is remote."""
    lease: str = ""
    """Of the run on a remote output."""


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """What a worker gives back."""

    outcome: EpisodeOutcome
    digests: Entries = field(default_factory=dict)
    """File digests for the driver's cache."""
    fingerprint: str = ""
    """Of the source's episode."""


def ingest_episode(task: EpisodeTask) -> EpisodeResult:
    """Read one episode and put its directory in place.

    Raises:
        EpisodeError, SourceError: this episode cannot be ingested; what OUT held of it before is still there.
        StorageError: OUT cannot be written: the disk is full or refuses.
    """
    started = time.perf_counter()
    digests = FileDigests()
    with _foreign_errors(task), ExitStack() as stack:
        source = open_source(task.config, task.root)
        out = _workplace(task, source, stack)
        fingerprint = task.fingerprint or source.fingerprint(task.ref, digests)
        if task.standing is not None and task.standing[0] == fingerprint:
            return EpisodeResult(_unchanged(task, task.standing[1]), digests.take_new(), fingerprint)
        with source.open(task.ref) as episode:
            length = common_length(episode.streams, episode.facts.timestamps)
            outcome = EpisodeOutcome(episode_id=task.episode_id, source_id=task.ref.source_id, status="empty")
            if length.frames == 0:
                what = f"{length.shortest} has no frames" if length.shortest else "it has no stream that can be read"
                what = episode.facts.nothing or what
                outcome = outcome.model_copy(update={"reason": f"nothing to write: {what}"})
            else:
                outcome = _write(task, out, source, fingerprint, episode, length)
            warnings = [*episode.facts.warnings, *outcome.warnings]
        if task.publish is not None and outcome.status == "written":
            folder = ObjectFolder(Place.of(task.publish, "output"))
            publish_remote(out / task.episode_id, folder, task.episode_id, partial(check_lease, folder, task.lease))
    seconds = round(time.perf_counter() - started, 3)
    outcome = outcome.model_copy(update={"seconds": seconds, "warnings": list(dict.fromkeys(warnings))})
    return EpisodeResult(outcome, digests.take_new(), fingerprint)


def _workplace(task: EpisodeTask, source: Source, stack: ExitStack) -> Path:
    """Where the episode is written: OUT itself, or scratch, with room there for what is staged.

    Raises:
        EpisodeError: this episode alone is larger than all of scratch.
    """
    remote = remote_source(source)
    staged = remote.needed(task.ref) if remote is not None else 0
    if remote is not None:
        stack.callback(remote.close)
    if task.publish is None and not staged:
        return Path(task.out)
    scratch = Scratch()
    if scratch.limit is not None and staged > scratch.limit:
        raise EpisodeError(
            f"{task.ref.source_id} of {task.root} needs {staged:,} bytes of scratch space, and KNONIK_SCRATCH_BYTES "
            f"allows {scratch.limit:,}; raise it."
        )
    room = stack.enter_context(scratch.room(staged, f"{task.root}, {task.ref.source_id},"))
    if remote is not None:
        remote.lend(room)
    return Path(task.out) if task.publish is None else room.folder


def _unchanged(task: EpisodeTask, frames: int) -> EpisodeOutcome:
    return EpisodeOutcome(episode_id=task.episode_id, source_id=task.ref.source_id, status="skipped", frames=frames)


@contextmanager
def _foreign_errors(task: EpisodeTask) -> Iterator[None]:
    """Sort what libraries raise: a full disk stops the run, anything else is this episode's own trouble."""
    try:
        yield
    except StorageError:
        raise
    except (OSError, EpisodeError) as error:
        if getattr(error, "errno", None) in _FULL or _cause_is_full(error):
            raise StorageError(f"cannot write to {task.out}: {refusal(OSError(errno.ENOSPC, ''))}") from error
        if isinstance(error, KnonikError):
            raise
        raise EpisodeError(f"{error.filename or task.ref.source_id}: {error.strerror or error}.") from error


def _cause_is_full(error: BaseException) -> bool:
    cause = error.__cause__
    return cause is not None and (getattr(cause, "errno", None) in _FULL or _cause_is_full(cause))


def _write(
    task: EpisodeTask, out: Path, source: Source, fingerprint: str, episode: SourceEpisode, length: Length
) -> EpisodeOutcome:
    config, facts = task.config, episode.facts
    times = clock(facts.timestamps, length.frames)
    fps, rate_warning = nominal_fps(config, episode.streams, times)
    dataset, robot_type, extra = about(config, facts, Path(task.root))
    warnings = [text for text in (length.warning(), rate_warning) if text is not None]
    with EpisodeWriter(
        out,
        task.episode_id,
        preset=config.preset,
        source_format=source.format,
        source_id=task.ref.source_id,
        source_fingerprint=fingerprint,
        config_fingerprint=task.config_fingerprint,
        dataset=dataset,
        robot_type=robot_type,
        fps=fps,
        extra=extra,
        jpeg_channel_order=config.jpeg_channel_order,
        orientation=config.orientation,
    ) as writer:
        _register(writer, episode)
        if times is not None:
            writer.clock(times, "source")
        said = language(config, facts)
        if said is not None:
            writer.language(*said)
        pictures = [spec for spec in episode.streams if spec.kind != "numeric"]
        count = FrameCount(progress_folder(Path(task.out)) / task.episode_id, length.frames * len(pictures))
        try:
            moved = Pictures(
                writer,
                episode,
                length.frames,
                count,
                rgb=config.preset.rgb,
                orientation=config.orientation,
                cores=task.cores,
            )
            warnings += moved.run(pictures, task.threads)
            _numerics(writer, episode, length.frames)
            metadata = writer.commit(trimmed=length.trimmed)
            warnings += _emptied(metadata)
        finally:
            count.close()
    return EpisodeOutcome(
        episode_id=task.episode_id,
        source_id=task.ref.source_id,
        status="written",
        frames=length.frames,
        bytes=_size(metadata, out / task.episode_id),
        warnings=warnings,
    )


def _emptied(metadata: EpisodeMetadata) -> list[str]:
    """Depth streams of which the preset left nothing."""
    found = []
    for name in metadata.depth_streams:
        params = metadata.stream_params[f"depth_{name}"]
        pixels = params["height"] * params["width"] * metadata.episode_length
        if params["no_reading"] == pixels:
            others = pixels - params["above_max"] - params["below_quantum"]
            found.append(
                f"depth_{name} keeps no reading at all: {params['above_max']} lay above the maximum, "
                f"{params['below_quantum']} below half of {params['quantization_mm']:g} mm, and {others} were zero, "
                "negative or not finite; see preset.depth and unit_m"
            )
    return found


def _register(writer: EpisodeWriter, episode: SourceEpisode) -> None:
    for spec in episode.streams:
        if spec.kind == "rgb":
            writer.add_rgb(spec.name, fps=spec.fps)
        elif spec.kind == "depth":
            writer.add_depth(spec.name, fps=spec.fps)
        else:
            names = spec.channel_names
            writer.add_numeric(spec.name, spec.shape[0], role=spec.role, channel_names=names, chunk_len=spec.chunk_len)


def _numerics(writer: EpisodeWriter, episode: SourceEpisode, frames: int) -> None:
    for spec in episode.streams:
        if spec.kind != "numeric":
            continue
        rows = episode.numeric(spec)
        if len(rows) < spec.length:
            raise EpisodeError(
                f"{spec.source} ends after {len(rows)} of its {spec.length} rows; the source is truncated."
            )
        times = episode.stream_times(spec)
        writer.numeric(spec.name, rows[:frames], None if times is None else times[:frames])


def _size(metadata: EpisodeMetadata, path: Path) -> int:
    return sum(entry.bytes for entry in metadata.files.values()) + (path / METADATA).stat().st_size
