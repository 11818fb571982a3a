"""One run of the packer, from its plan to the manifest that is put in place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from knonik_assets.configs.documents import json_bytes
from knonik_assets.engine import Engine, EngineName
from knonik_assets.episodes.storing import storage_errors
from knonik_assets.holding import Holding, hold
from knonik_assets.ingesting.progress import FrameCount, Progress, clear_counts, progress_folder
from knonik_assets.packing import existing, fidelity
from knonik_assets.packing.checksums import PictureCheck
from knonik_assets.packing.episodes import Episodes
from knonik_assets.packing.existing import REPORT
from knonik_assets.packing.plan import FilePlan, PackPlan, reencodes
from knonik_assets.packing.publish import check_uploads, describe, publish, put_whole
from knonik_assets.packing.staging import Staging
from knonik_assets.packing.stored import stored_id
from knonik_assets.packing.survey import Survey, survey
from knonik_assets.packing.transcode import FileResult, FileTask, TaskShard, write_file
from knonik_assets.packing.work import each, each_in_threads, write_files
from knonik_assets.storage import Lease, ObjectInfo, Place, Scratch, files
from knonik_loader.errors import EpisodeError, PackError, StorageError
from knonik_loader.khlp.manifest import Manifest

__all__ = ["PackRun"]

_FEW_BYTES = 1 << 30


def _write_counted(task: FileTask, counts: Path, verified: Callable[[], None] = lambda: None) -> FileResult:
    """What a worker does: write a file and say now and then how far it is."""
    count = FrameCount(counts / Path(task.name).stem, sum(shard.frames for shard in task.shards))
    try:
        return write_file(task, count.add, verified)
    finally:
        count.close()


class PackRun:
    """One pack.

    Args:
        source: the folder of episodes.
        episodes: what is in it.
        out: the output directory.
        plan: what to write.
        engine: where the work is done.
        workers: see `Engine`.
        ray_options: see `Engine`.
        progress: is told how far the run is.
        overwrite: whether another dataset that stands there may be superseded.
    """

    def __init__(
        self,
        source: Place,
        episodes: Episodes,
        out: Place,
        plan: PackPlan,
        engine: EngineName,
        workers: int | None,
        ray_options: Mapping[str, Any] | None,
        progress: Progress | None,
        *,
        overwrite: bool,
    ) -> None:
        self.source, self.episodes, self.out, self.plan = source, episodes, out, plan
        self.engine, self.workers, self.ray_options, self.progress = engine, workers, ray_options, progress
        self.overwrite = overwrite
        self.scratch = Scratch() if source.is_remote or out.is_remote else None
        local = engine == "inline" or (engine == "processes" and (plan.copied_bytes or 0) < _FEW_BYTES)
        self.copies = plan.copied_bytes is not None and self.scratch is None and local
        """This process writes the files itself, of pictures on its disks that pass."""
        self.current: existing.Standing | None = None
        self.unfinished: ObjectInfo | None = None
        """The manifest of the generation that is written, left by a run that was killed before it was current."""
        self.warnings: list[str] = [*episodes.warnings, *plan.warnings]

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
        """Write files, index and manifest, holding the lock or lease on the output.

        Raises:
            EpisodeError, PackError, StorageError: see `knonik_assets.pack.pack`.
        """
        reading = Staging(self.source, self.out, self.out, self.scratch)
        with PictureCheck(self.source.path, self.plan) if self.copies else nullcontext() as pictures:
            found = survey(reading, self.plan, pictures=pictures is None)
            self.warnings += found.warnings
            with hold(self.out) as holding:
                # another run may have been here while the episodes were read
                return self.unchanged() or self._write(found, pictures, began, holding)

    def _write(self, found: Survey, pictures: PictureCheck | None, began: float, holding: Holding) -> Manifest:
        generation = self._generation(holding)
        folder = existing.folder_of(self.out, generation)
        if not folder.is_remote:
            with storage_errors("write to", folder.path):
                folder.path.mkdir(parents=True, exist_ok=True)
        existing.sweep([self.out, folder])
        self._clear(folder, generation)
        self.unfinished = files.stat(self.out / existing.manifest_name(generation))
        with self._counts() as counts:
            try:
                return self._write_generation(generation, found, pictures, began, holding, counts)
            except BaseException:
                with suppress(StorageError):  # what stopped the run is what to hear of
                    existing.sweep([self.out, folder])
                raise

    def _generation(self, holding: Holding) -> int:
        """The number to write under: never one whose files a run that may still be alive could write over."""
        generation = existing.next_generation(self.out, self.current, self.plan)
        if not isinstance(holding, Lease):
            return generation
        generation = existing.behind(generation, holding.abandoned, self.plan)
        if holding.outlasted:  # of a run that didn't declare what it writes, only what has arrived is known
            while existing.leftovers(existing.folder_of(self.out, generation), self.plan):
                generation += 1
        holding.abandoned = existing.decisive(holding.abandoned)
        holding.declare(plan=self.plan.fingerprint, generation=generation)
        return generation

    @contextmanager
    def _counts(self) -> Iterator[Path]:
        """Where workers leave counts of their frames, emptied before and afterwards."""
        if self.scratch is not None:
            with self.scratch.room(0, "progress", pinned=True) as room:
                yield progress_folder(room.folder)
            return
        clear_counts(self.out.path)
        try:
            yield progress_folder(self.out.path)
        finally:
            clear_counts(self.out.path)

    def _write_generation(
        self,
        generation: int,
        found: Survey,
        pictures: PictureCheck | None,
        began: float,
        holding: Holding,
        counts: Path,
    ) -> Manifest:
        folder = existing.folder_of(self.out, generation)
        holder = holding.id if isinstance(holding, Lease) else ""
        staging = Staging(self.source, self.out, folder, self.scratch, holder)
        started = time.monotonic()
        with self._engine() as engine:
            results = self._write_files(engine, staging, pictures, counts)
            self.episodes.check_unchanged(self.plan.episodes)
            written = time.monotonic()
            measured = self._compare(engine, staging)
            where = {"engine": engine.name, "workers": engine.lanes}
        psnr = fidelity.worst(self.plan.streams, measured)
        summaries = [result.summary for result in results]
        manifest, index = describe(self.out, generation, self.plan, found, summaries, psnr)
        now = time.monotonic()
        seconds = {"read": started - began, "write": written - started, "compare": now - written, "all": now - began}
        # The current manifest is the last that is written: a run killed before it is finished by the next one, report
        # and all, and behind it there is nothing to finish.
        if isinstance(holding, Lease):
            holding.check()
            check_uploads(
                folder, [(file.name, result.etag) for file, result in zip(self.plan.files, results, strict=True)]
            )
        self._report(manifest, results, seconds, where)
        if self.scratch is None:
            clear_counts(self.out.path)
        before = self.current.info if self.current is not None else None
        publish(self.out, manifest, index, before, self.unfinished)
        return manifest

    def _compare(self, engine: Engine, staging: Staging) -> list[dict[str, float]]:
        """Samples of every episode as they were packed against the episode's own."""
        samples = fidelity.tasks(self.plan, staging)
        names, what = [task.episode for task in samples], "episodes to compare"
        if self.copies:
            return each_in_threads(fidelity.compare, samples, names, self.progress, what)
        return each(engine, fidelity.compare, samples, names, self.progress, what)

    def _write_files(
        self, engine: Engine, staging: Staging, pictures: PictureCheck | None, counts: Path
    ) -> list[FileResult]:
        """Write the files of a generation; none has its name before its episodes were found whole."""
        tasks = [self._task(file, staging) for file in self.plan.files]
        write = partial(_write_counted, counts=counts)
        if pictures is None:
            return write_files(engine, tasks, write, self.progress, counts)
        try:
            results = write_files(engine, tasks, partial(write, verified=pictures.wait), self.progress, counts)
        except (EpisodeError, PackError):
            pictures.wait()  # damage is what to hear of first, not what became of it
            raise
        pictures.wait()
        return results

    def _clear(self, folder: Place, generation: int) -> None:
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
        if strangers:
            files.remove([stale, *strangers])

    def _task(self, file: FilePlan, staging: Staging) -> FileTask:
        episodes = self.plan.episodes
        return FileTask(
            staging=staging,
            name=file.name,
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
        few = self.plan.copied_bytes is not None and self.plan.copied_bytes < _FEW_BYTES
        if self.copies or (self.engine == "processes" and few):
            return Engine("inline")
        return Engine(self.engine, self.workers, self.ray_options)

    def _report(
        self, manifest: Manifest, results: Iterable[FileResult], seconds: Mapping[str, float], where: Mapping[str, Any]
    ) -> None:
        """What the run did; the only file that holds durations."""
        written = list(results)
        size = sum(result.summary.bytes for result in written)
        source = self.source if self.source.is_remote else self.source.path.resolve()
        report = {
            "dataset": manifest.dataset,
            "generation": manifest.generation,
            "storage_profile": manifest.storage_profile,
            "episodes": manifest.num_episodes,
            "frames": manifest.num_frames,
            "bytes": size,
            "files_written": sum(not result.reused for result in written),
            "files_reused": sum(result.reused for result in written),
            "psnr_y": {stream.info().key: stream.psnr_y for stream in manifest.streams if stream.psnr_y is not None},
            "input_dir": str(source),
            "excluded": dict(self.plan.options.exclude),
            "seconds": {stage: round(value, 3) for stage, value in seconds.items()},
            **where,
            "frames_per_second": round(manifest.num_frames / max(seconds["all"], 1e-3), 1),
            "bytes_per_second": round(size / max(seconds["all"], 1e-3)),
            "warnings": self.warnings,
        }
        put_whole(self.out / REPORT, json_bytes(report))
