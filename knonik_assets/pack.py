"""Pack: a directory of episodes in, a KHLP dataset out, whole or not at all."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from knonik_assets.collecting import KEEP_DAYS, check_keep_days, collect_generations
from knonik_assets.configs.documents import local_path, write_json
from knonik_assets.configs.pack import PackMode, PackOptions
from knonik_assets.configs.validation import validate
from knonik_assets.engine import Engine, EngineName, check_call
from knonik_assets.episodes.metadata import METADATA
from knonik_assets.episodes.storing import storage_errors
from knonik_assets.ingesting.lock import OutputLock
from knonik_assets.ingesting.progress import FrameCount, Progress, clear_counts, progress_folder
from knonik_assets.packing import existing, fidelity
from knonik_assets.packing.existing import REPORT
from knonik_assets.packing.facts import choose_episodes, read_facts
from knonik_assets.packing.plan import FilePlan, PackPlan, make_plan, reencodes
from knonik_assets.packing.publish import describe, paths_of, publish
from knonik_assets.packing.stored import stored_id
from knonik_assets.packing.survey import Survey, survey
from knonik_assets.packing.transcode import FileResult, FileTask, TaskShard, write_file
from knonik_assets.packing.work import each, write_files
from knonik_loader import access
from knonik_loader.errors import ConfigError, PackError, StorageError
from knonik_loader.khlp.manifest import Manifest
from knonik_loader.khlp.types import StorageProfile

__all__ = ["REPORT", "pack"]

_log = logging.getLogger(__name__)

_FEW_BYTES = 1 << 30


def pack(
    input_dir: str | Path,
    output_dir: str | Path,
    dataset_name: str,
    shard_size: int | None = None,
    window_size: int = 64,
    fps: float | None = None,
    seed: int = 0,
    pack_mode: PackMode = "shard_batch",
    storage_profile: StorageProfile = "compact_video",
    *,
    workers: int | None = None,
    engine: EngineName = "processes",
    streams: Sequence[str] | None = None,
    episodes: Sequence[str] | None = None,
    exclude: Mapping[str, str] | Sequence[str] | None = None,
    split: Mapping[str, float] | str | None = None,
    resize: Mapping[str, Sequence[int]] | Sequence[str] | None = None,
    codec: str | None = None,
    quality: int | None = None,
    gop: int | None = None,
    chroma: str | None = None,
    overwrite: bool = False,
    collect: bool = False,
    keep_days: float | None = None,
    ray_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Pack ingested episodes. Unchanged input and options do nothing, a killed run goes on where it stopped.

    Args:
        input_dir: episodes, as ingest wrote them; never changed.
        output_dir: where the manifest and the KHLP files go.
        dataset_name: the dataset's name in the manifest.
        shard_size: frames a shard at most; None: the hint of the episodes' preset, else 45.
        window_size: shards a KHLP file.
        fps: recorded, never resamples; None: the episodes' own.
        seed: of the shards' order and of the splits.
        pack_mode: ``shard_batch`` mixes the shards of all episodes, ``episode`` keeps episodes whole and in order.
        storage_profile: ``compact_video``, ``training_fast`` or ``training_compressed``.
        workers: files or shards worked on at once; None: one a core.
        engine: ``inline``, ``processes`` or ``ray``.
        streams: only these, with or without ``rgb_`` / ``depth_``.
        episodes: only these directories.
        exclude: all but these directories; as a dict, with the reasons.
        split: fractions by name, such as ``{"train": 0.9, "val": 0.1}``.
        resize: colour stream → (height, width), by area.
        codec: of ``compact_video``: ``h264``, ``vp9`` or ``av1``.
        quality: JPEG quality, or the CRF of ``compact_video``.
        gop: frames from one keyframe to the next.
        chroma: ``420`` or ``444``.
        overwrite: write a new generation beside the old one when anything changed.
        collect: afterwards remove generations that were superseded at least ``keep_days`` days ago, and log which;
            `knonik_assets.collecting.collect_generations` does the same on its own and returns them.
        keep_days: for ``collect``; None: 14.
        ray_options: for engine ``ray``, see `knonik_assets.engine.map_tasks`.
        progress: is told how far the run is.

    Returns:
        The paths written, the manifest first, then the index and the KHLP files.

    Warns:
        UserWarning: what was packed is odd: another rate than the clocks, empty splits, values that are not finite.

    Raises:
        ConfigError: a mistake in the call; the output is untouched.
        PackError: the episodes don't agree, or another dataset stands in ``output_dir``.
        EpisodeError: an episode is damaged.
        StorageError: the disk stands in the way, or another run is writing there.
        LoginRequired: an issuer is configured and there is no valid token.
    """
    access.require("ingest")
    given = {name: value for name, value in locals().items() if name in PackOptions.model_fields}
    options = validate(PackOptions, given, "pack options")
    check_call(engine, workers, ray_options=ray_options)
    if not isinstance(overwrite, bool):
        raise ConfigError(f"overwrite must be True or False, not {overwrite!r}.")
    keep = _keep_days(collect, keep_days)
    source, out = _local(input_dir, "input_dir"), _local(output_dir, "output_dir")
    _check_apart(source, out)
    began = time.monotonic()
    plan = make_plan([read_facts(path) for path in choose_episodes(source, options.episodes, options.exclude)], options)
    run = _Run(source, out, plan, engine, workers, ray_options, progress, overwrite=overwrite)
    # What is unchanged or refused is left alone entirely, so this looks before it locks, and once more behind the lock.
    manifest = run.unchanged() or run.write(began)
    for text in run.warnings:
        warnings.warn(text, UserWarning, stacklevel=2)
    if keep is not None:
        for removed in collect_generations(out, keep):
            _log.info("%s: removed %s", out, removed)
    return paths_of(out, manifest)


def _keep_days(collect: bool, keep_days: float | None) -> float | None:
    """Days to keep superseded generations for; None: nothing is collected."""
    if not isinstance(collect, bool):
        raise ConfigError(f"collect must be True or False, not {collect!r}.")
    if not collect:
        if keep_days is not None:
            raise ConfigError("keep_days says what collect may remove; it needs collect=True (--collect).")
        return None
    return KEEP_DAYS if keep_days is None else check_keep_days(keep_days)


def _local(path: str | Path, name: str) -> Path:
    if not isinstance(path, str | Path):
        raise ConfigError(f"{name} must be a path, not {path!r}.")
    if "://" in str(path):
        raise ConfigError(f"{name} {path}: packing works on local disks only in this version.")
    return local_path(path, name)


def _check_apart(source: Path, out: Path) -> None:
    """Packing never writes into what it reads."""
    source, out = source.resolve(), out.resolve()
    if source == out:
        raise ConfigError(f"output_dir and input_dir are the same directory {out}; pack never writes into episodes.")
    for folder in (out, *out.parents):
        if folder.parent == source and (folder / METADATA).is_file():
            raise ConfigError(f"output_dir {out} is inside the episode {folder}; name a directory outside of it.")


def _write_counted(task: FileTask, counts: Path) -> FileResult:
    """What a worker does: write a file and say now and then how far it is."""
    count = FrameCount(counts / task.target.stem, sum(shard.frames for shard in task.shards))
    try:
        return write_file(task, count.add)
    finally:
        count.close()


class _Run:
    """One pack."""

    def __init__(
        self,
        source: Path,
        out: Path,
        plan: PackPlan,
        engine: EngineName,
        workers: int | None,
        ray_options: Mapping[str, Any] | None,
        progress: Progress | None,
        *,
        overwrite: bool,
    ) -> None:
        self.source, self.out, self.plan = source, out, plan
        self.engine, self.workers, self.ray_options, self.progress = engine, workers, ray_options, progress
        self.overwrite = overwrite
        self.current: existing.Standing | None = None
        self.warnings: list[str] = list(plan.warnings)

    def unchanged(self) -> Manifest | None:
        """The dataset that stands there, when it is exactly what was asked for; None when there is work to do.

        Raises:
            PackError: another dataset stands there and it may not be replaced.
        """
        self.current = existing.standing(self.out)
        if self.current is None:
            return None
        same = self.current.manifest.pack_fingerprint == self.plan.fingerprint
        if same and not self.current.damage:
            return self.current.manifest
        if not self.overwrite:
            what = "; ".join(self.current.damage) if same else existing.changes(self.current, self.out, self.plan)
            raise PackError(
                f"{self.out} holds a packed dataset already, and this one would differ: {what}. "
                "Say --overwrite (overwrite=True) for a new generation beside it, or name another directory."
            )
        return None

    def write(self, began: float) -> Manifest:
        """Write files, index and manifest, holding the lock on the output."""
        found = survey(self.source, self.plan)
        self.warnings += found.warnings
        with OutputLock(self.out):
            # another run may have been here while the episodes were read
            return self.unchanged() or self._write(found, began)

    def _write(self, found: Survey, began: float) -> Manifest:
        generation = existing.next_generation(self.out, self.current, self.plan)
        folder = existing.folder_of(self.out, generation)
        with storage_errors("write to", folder):
            folder.mkdir(parents=True, exist_ok=True)
        existing.sweep([self.out, folder])
        self._clear(folder, generation)
        clear_counts(self.out)
        try:
            return self._write_generation(generation, folder, found, began)
        except BaseException:
            with suppress(StorageError):  # what stopped the run is what to hear of
                existing.sweep([self.out, folder])
            clear_counts(self.out)
            raise

    def _write_generation(self, generation: int, folder: Path, found: Survey, began: float) -> Manifest:
        started = time.monotonic()
        with self._engine() as engine:
            counts = progress_folder(self.out)
            tasks = [self._task(file, folder) for file in self.plan.files]
            results = write_files(engine, tasks, partial(_write_counted, counts=counts), self.progress, counts)
            self._check_unchanged()
            written = time.monotonic()
            samples = fidelity.tasks(self.plan, self.source, folder)
            names = [task.episode.name for task in samples]
            measured = each(engine, fidelity.compare, samples, names, self.progress, "episodes to compare")
            where = {"engine": engine.name, "workers": engine.lanes}
        psnr = fidelity.worst(self.plan.streams, measured)
        summaries = [result.summary for result in results]
        manifest, index = describe(self.out, generation, self.plan, found, summaries, psnr)
        now = time.monotonic()
        seconds = {"read": started - began, "write": written - started, "compare": now - written, "all": now - began}
        # The current manifest is the last that is written: a run killed before it is finished by the next one, report
        # and all, and behind it there is nothing to finish.
        self._report(manifest, results, seconds, where)
        clear_counts(self.out)
        publish(self.out, manifest, index)
        return manifest

    def _check_unchanged(self) -> None:
        """Refuse clocks, statistics and reused files of an episode that an ingest has replaced since it was planned."""
        for episode in self.plan.episodes:
            path = self.source / episode.episode_id
            if read_facts(path).digest != episode.digest:
                raise PackError(f"{path} was replaced while it was packed; pack again when ingest has ended.")

    def _clear(self, folder: Path, generation: int) -> None:
        """Make room where a killed run with other options left files that no current manifest names."""
        strangers = existing.leftovers(folder, self.plan)
        foreign = [path for path in strangers if stored_id(path) is None]
        # a generation's folder is ours alone; the directory itself may be somebody's, unless they said otherwise
        if foreign:
            names = ", ".join(path.name for path in foreign[:3])
            raise PackError(
                f"{folder} holds files that are named like KHLP files and are none ({names}): remove them, or name "
                "another directory."
            )
        if strangers and folder == self.out and not self.overwrite:
            names = ", ".join(path.name for path in strangers[:3])
            raise PackError(
                f"{folder} holds files that no manifest names and that this pack would not write ({names}), probably "
                "of a run that was killed: remove them, say --overwrite, or name another directory."
            )
        stale = self.out / existing.manifest_name(generation)
        for path in (stale, *strangers) if strangers else ():
            with storage_errors("remove", path):
                path.unlink(missing_ok=True)

    def _task(self, file: FilePlan, folder: Path) -> FileTask:
        episodes = self.plan.episodes
        return FileTask(
            input_dir=self.source,
            target=folder / file.name,
            profile=self.plan.options.storage_profile,
            streams=self.plan.streams,
            hlp_id=file.hlp_id,
            shards=tuple(
                TaskShard(
                    episodes[shard.episode].episode_id,
                    episodes[shard.episode].source_id,
                    episodes[shard.episode].digest,
                    shard.first_frame,
                    shard.frames,
                )
                for shard in file.shards
            ),
            reencode=reencodes(self.plan.options),
        )

    def _engine(self) -> Engine:
        """Where the work runs: as asked, but what only copies a little is done before a process has started."""
        if self.engine == "processes" and self.plan.copied_bytes is not None and self.plan.copied_bytes < _FEW_BYTES:
            return Engine("inline")
        return Engine(self.engine, self.workers, self.ray_options)

    def _report(
        self, manifest: Manifest, results: Iterable[FileResult], seconds: Mapping[str, float], where: Mapping[str, Any]
    ) -> None:
        """What the run did; the only file that holds durations."""
        files = list(results)
        size = sum(result.summary.bytes for result in files)
        write_json(
            self.out / REPORT,
            {
                "dataset": manifest.dataset,
                "generation": manifest.generation,
                "storage_profile": manifest.storage_profile,
                "episodes": manifest.num_episodes,
                "frames": manifest.num_frames,
                "bytes": size,
                "files_written": sum(not result.reused for result in files),
                "files_reused": sum(result.reused for result in files),
                "psnr_y": {
                    stream.info().key: stream.psnr_y for stream in manifest.streams if stream.psnr_y is not None
                },
                "input_dir": str(self.source.resolve()),
                "excluded": dict(self.plan.options.exclude),
                "seconds": {stage: round(value, 3) for stage, value in seconds.items()},
                **where,
                "frames_per_second": round(manifest.num_frames / max(seconds["all"], 1e-3), 1),
                "bytes_per_second": round(size / max(seconds["all"], 1e-3)),
                "warnings": self.warnings,
            },
        )
