"""Ingest: a raw dataset in, a directory of episodes out, incrementally and one run at a time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any

from knonik_assets.configs.dataset import CONFIG, build_dataset_config, write_dataset_config
from knonik_assets.configs.documents import write_whole
from knonik_assets.configs.ingest import IngestConfig, StagedStreams
from knonik_assets.configs.load import config_fingerprint, load_ingest_config
from knonik_assets.engine import EngineName, Outcome, check_call, default_workers, map_tasks
from knonik_assets.episodes.metadata import check_extra
from knonik_assets.episodes.storing import recover
from knonik_assets.episodes.video import check_preset
from knonik_assets.ingesting.fingerprints import FINGERPRINTS, FileDigests
from knonik_assets.ingesting.numbering import NUMBERS, assign_numbers, read_numbers
from knonik_assets.ingesting.one_episode import EpisodeResult, EpisodeTask, ingest_episode
from knonik_assets.ingesting.output import Output, open_output
from knonik_assets.ingesting.planning import Planned, departed, plan, refuse_strangers
from knonik_assets.ingesting.progress import Progress, clear_counts, progress_folder
from knonik_assets.ingesting.report import REPORT, EpisodeOutcome, IngestReport
from knonik_assets.sources.base import EpisodeRef, Source
from knonik_assets.sources.guarded import GuardedSource, open_guarded, remote_source
from knonik_assets.sources.remote.memory import OBJECTS, ObjectMemory
from knonik_assets.storage import Place
from knonik_loader import access
from knonik_loader.errors import ConfigError, EpisodeError, KnonikError, SourceError, StorageError

__all__ = ["run"]

_HERE = "."
_PROBED = 3
_MOST_CHECKS = 8
"""Threads of a worker that check pictures: what one thread reads and writes meanwhile keeps no more busy."""


def run(
    config: str | Path | Mapping[str, Any] | IngestConfig,
    input: str | Path | None = None,
    output: str | Path | None = None,
    force_config: bool = False,
    workers: int | None = None,
    engine: EngineName = "processes",
    fail_fast: bool = False,
    prune: bool = False,
    *,
    dataset_config: bool = True,
    ray_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> IngestReport:
    """Ingest a raw dataset. Unchanged episodes are skipped, changed ones replaced, a killed run goes on.

    Args:
        config: path of an ingest config (JSON or YAML), or what one would hold.
        input: the raw dataset, a path or URL; wins over the config's ``data_dir``.
        output: where the episode directories go, a path or URL.
        force_config: write the dataset config anew where there is one.
        workers: cores to use; None: all that this process may use.
        engine: ``inline``, ``processes`` or ``ray``.
        fail_fast: stop at the first episode that fails.
        prune: remove episodes whose source is gone.
        dataset_config: write the dataset config at all.
        ray_options: for engine ``ray``, see `knonik_assets.engine.map_tasks`.
        progress: is told how far the run is.

    Returns:
        What became of every episode; also in ``ingest_report.json``. Failures of single episodes are in there.

    Raises:
        ConfigError: a mistake in the config or the call; the output is untouched.
        SourceError: the raw dataset cannot be read, or lacks what the layout names; the output is untouched.
        EpisodeError: not a single episode could be ingested.
        StorageError: the output cannot be written, is full, or another run is writing it.
        LoginRequired: an issuer is configured and there is no valid token.
    """
    access.require("ingest")
    settings = load_ingest_config(config)
    check_call(engine, workers, ray_options=ray_options)
    check_preset(settings.preset)
    check_extra({key: value for key, value in settings.metadata.items() if key not in ("dataset", "robot_type")})
    if prune and settings.dir_type == "npy_separate":
        raise ConfigError("prune would remove all episodes but this one: a staging directory is one episode.")
    root, place = _root(settings, input), _output(output)
    _check_apart(root, place, settings)
    with closing(open_guarded(settings, root)) as source:
        output_ = open_output(place)
        memory = _remember(source, output_, settings)
        refs = source.episodes()
        _check_unique(refs, root)
        _probe(source, refs)
        with output_, output_.told():
            task = _Run(settings, root, output_, source, refs, engine, workers, ray_options, progress, memory)
            return task.go(fail_fast=fail_fast, prune=prune, force_config=force_config, dataset_config=dataset_config)


def _root(settings: IngestConfig, given: str | Path | None) -> str:
    root = given if given is not None else settings.data_dir or ""
    if not str(root) and settings.dir_type == "npy_separate":
        root = _HERE  # its streams block says where everything is
    if not str(root):
        raise ConfigError("no raw dataset is named: say --input (input=), or data_dir in the config.")
    return str(Place.of(root, "input"))


def _output(given: str | Path | None) -> Place:
    if given is None or not str(given):
        raise ConfigError("no output directory is named: say --output (output=).")
    return Place.of(given, "output")


def _remember(source: GuardedSource, output: Output, settings: IngestConfig) -> ObjectMemory | None:
    """Give a remote source what earlier runs found out about its objects."""
    remote = remote_source(source)
    if remote is None:
        return None
    remote.memory = ObjectMemory(output.read(OBJECTS), str(remote.place), config_fingerprint(settings))
    return remote.memory


def _check_apart(root: str, output: Place, settings: IngestConfig) -> None:
    if settings.streams is not None and root == _HERE:
        _check_apart_from_staged(settings.streams, output)
        return
    source = Place.of(root, "input")
    if source.is_remote != output.is_remote:
        return
    if source.is_remote:
        raw, out = str(source), str(output)
        same, inside = raw == out, out.startswith(f"{raw}/")
    else:
        raw, out = str(_followed(source.path, "input")), str(_followed(output.path, "output"))
        same, inside = raw == out, Path(raw) in Path(out).parents
    if same or inside:
        what = f"output and input are the same directory {out}" if same else f"output {out} lies inside input {raw}"
        raise ConfigError(f"{what}; ingest never writes into raw data, so name another --output.")


def _followed(path: Path, what: str) -> Path:
    """Where a path leads in the end.

    Raises:
        ConfigError: links in a circle, a folder that may not be entered, a name too long.
    """
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"{what} {path} leads nowhere: {getattr(error, 'strerror', None) or error}.") from error


def _check_apart_from_staged(streams: StagedStreams, output: Place) -> None:
    """No root was named, so the raw data are what the block leads to, and not the working directory around it."""
    if output.is_remote:
        return
    out = output.path.resolve()
    for folder in (entry.dir for entry in (*streams.rgb.values(), *streams.depth.values())):
        raw = Path(folder).resolve()
        if raw == out or raw in out.parents:
            raise ConfigError(
                f"output {out} lies inside the staged frames {raw}; ingest never writes into raw data, so name another "
                "--output."
            )
    for file in (entry.path for entry in streams.numeric.values()):
        if Path(file).resolve().parent == out:
            raise ConfigError(
                f"output {out} is the folder of the staged {Path(file).name}; ingest never writes into raw data, so "
                "name another --output."
            )


def _check_unique(refs: Sequence[EpisodeRef], root: str) -> None:
    seen: set[str] = set()
    for ref in refs:
        if ref.source_id in seen:
            raise SourceError(f"{root}: two episodes are called {ref.source_id!r}; rename one.")
        seen.add(ref.source_id)
    if not refs:
        raise SourceError(f"{root}: no episode is in it.")


def _probe(source: Source, refs: Sequence[EpisodeRef]) -> None:
    """Open one of the first episodes, so that a mistaken layout is told of before any output is touched."""
    remote = remote_source(source)
    if remote is not None and remote.memory:
        return  # this config has read it before
    with remote.kept() if remote is not None else nullcontext():
        for ref in refs[:_PROBED]:
            with suppress(EpisodeError):
                with source.open(ref):
                    pass
                return


class _Run:
    """One run, holding the lock on OUT."""

    def __init__(
        self,
        settings: IngestConfig,
        root: str,
        output: Output,
        source: GuardedSource,
        refs: Sequence[EpisodeRef],
        engine: EngineName,
        workers: int | None,
        ray_options: Mapping[str, Any] | None,
        progress: Progress | None,
        memory: ObjectMemory | None,
    ) -> None:
        self.settings, self.root, self.output, self.source, self.refs = settings, root, output, source, refs
        self.out, self.memory = output.path, memory
        self.engine, self.workers, self.ray_options, self.progress = engine, workers, ray_options, progress
        self.fingerprint = config_fingerprint(settings)
        self.digests = FileDigests(self.out / FINGERPRINTS)
        self.report = IngestReport(
            output=output.where,
            source_format=source.format,
            config_fingerprint=self.fingerprint,
            warnings=source.warnings,
        )

    def go(self, *, fail_fast: bool, prune: bool, force_config: bool, dataset_config: bool) -> IngestReport:
        started = time.perf_counter()
        self._warn(*(f"{knob} has no effect with {self._codec}" for knob in self.settings.preset.inactive()))
        self._warn(*(f"{name} was put back from an interrupted replacement" for name in recover(self.out)))
        clear_counts(self.out)
        numbers = read_numbers(self.out)
        wanted = self.refs[: self.settings.episode_limit]
        numbers = assign_numbers(self.out, [ref.source_id for ref in wanted], numbers)
        # before anything says that these numbers are this output's own
        refuse_strangers(self.output, numbers, [ref.source_id for ref in wanted])
        self.output.sent(NUMBERS)
        self._depart(numbers, prune=prune)
        planned = self._plan(wanted, numbers)
        try:
            self._work(planned, fail_fast=fail_fast)
        except StorageError:
            with suppress(StorageError):  # the disk that refused an episode may well refuse the report
                self._finish(planned, started)
            raise
        if dataset_config and (self.report.written or self.report.skipped):
            self._dataset_config(force=force_config)
        self._finish(planned, started)
        self._keep()
        if not self.report.written and not self.report.skipped:
            raise EpisodeError(self._nothing())
        return self.report

    def _plan(self, wanted: Sequence[EpisodeRef], numbers: Mapping[str, int]) -> list[Planned]:
        planned = plan(self.source, wanted, self.output, numbers, self.fingerprint, self.digests)
        if self.memory is None or all(one.unchanged is not None or one.ref.locator is not None for one in planned):
            return planned
        # remembered episodes say nothing of where they are: something is to be done, so look
        self.refs = self.source.look()
        wanted = self.refs[: self.settings.episode_limit]
        return plan(self.source, wanted, self.output, numbers, self.fingerprint, self.digests)

    def _keep(self) -> None:
        """What later runs are spared by."""
        self.digests.save()
        self.output.sent(FINGERPRINTS)
        data = self.memory.dump() if self.memory is not None else None
        if data is not None:
            write_whole(self.out / OBJECTS, data)
            self.output.sent(OBJECTS)

    @property
    def _codec(self) -> str:
        return f"codec {self.settings.preset.rgb.codec}"

    def _warn(self, *warnings: str) -> None:
        self.report.warnings = [*self.report.warnings, *warnings]

    def _depart(self, numbers: Mapping[str, int], *, prune: bool) -> None:
        if self.settings.dir_type == "npy_separate":
            return  # every staging directory is a source of its own
        gone = departed(self.out, {ref.source_id for ref in self.refs}, numbers)
        gone = [episode_id for episode_id in gone if not self.output.stranger(episode_id)]
        if prune:
            for episode_id in gone:
                self.output.remove(episode_id)
            self.report.pruned = gone
        elif gone:
            shown = ", ".join(gone[:5]) + (", …" if len(gone) > 5 else "")
            what = "1 episode that is" if len(gone) == 1 else f"{len(gone)} episodes that are"
            self._warn(f"the output holds {what} no longer in the source ({shown}); --prune (prune=True) removes them")

    def _work(self, planned: Sequence[Planned], *, fail_fast: bool) -> None:
        todo = [one for one in planned if one.unchanged is None and one.error is None]
        budget = self.workers or default_workers()
        lanes = {"inline": 1, "processes": max(1, min(budget, len(todo))), "ray": budget}[self.engine]
        threads = self.settings.preset.rgb.workers or max(1, budget // lanes)
        cores = threads if self.engine == "ray" else self.settings.preset.rgb.workers or budget
        tasks = [self._task(one, threads, min(cores, _MOST_CHECKS)) for one in todo]
        done = {one.episode_id: _settled(one) for one in planned if one.unchanged is not None or one.error is not None}
        failed = any(outcome.status == "failed" for outcome in done.values())
        results = map_tasks(
            ingest_episode, tasks, engine=self.engine, workers=self.workers, ray_options=self.ray_options
        )
        try:
            if self.progress is not None:
                self.progress.begin(len(tasks), "episodes", progress_folder(self.out))
            with closing(results):
                while not (fail_fast and failed) and (result := next(results, None)) is not None:
                    if isinstance(result.error, StorageError):
                        raise result.error
                    outcome = self._outcome(result)
                    done[outcome.episode_id] = outcome
                    failed |= outcome.status == "failed"
                    if self.progress is not None:
                        self.progress.advance(_in_words(outcome))
        finally:
            with suppress(StorageError):  # what workers that were stopped left behind; the next run removes it too
                recover(self.out)
            self.report.episodes = [done[one.episode_id] for one in planned if one.episode_id in done]
            if self.progress is not None:
                self.progress.end()

    def _task(self, one: Planned, threads: int, cores: int) -> EpisodeTask:
        return EpisodeTask(
            config=self.settings,
            root=self.root,
            out=str(self.out),
            ref=one.ref,
            episode_id=one.episode_id,
            config_fingerprint=self.fingerprint,
            fingerprint=one.fingerprint,
            threads=threads,
            cores=cores,
            standing=None if one.standing is None else (one.standing.source_fingerprint, one.standing.episode_length),
            publish=self.output.url,
            lease=self.output.lease,
        )

    def _outcome(self, result: Outcome[EpisodeTask, EpisodeResult]) -> EpisodeOutcome:
        task = result.item
        if result.value is not None:
            self.digests.learn(result.value.digests)
            outcome = result.value.outcome
            if self.memory is not None:
                self.memory.learn({task.ref.source_id: (task.ref.locator.state, result.value.fingerprint)})
            if outcome.status == "written":
                self.output.arrived(task.episode_id)
        else:
            outcome = EpisodeOutcome(
                episode_id=task.episode_id,
                source_id=task.ref.source_id,
                status="failed",
                reason=str(result.error),
                details=result.details,
            )
        if outcome.status not in ("written", "skipped") and (self.out / task.episode_id).exists():
            outcome = outcome.model_copy(update={"warnings": [*outcome.warnings, _kept(task.episode_id)]})
        return outcome

    def _dataset_config(self, *, force: bool) -> None:
        if (self.out / CONFIG).exists() and not force:
            return
        try:
            write_dataset_config(self.out, build_dataset_config(self.out))
            self.output.sent(CONFIG)
        except StorageError:
            raise
        except KnonikError as error:
            self._warn(f"{CONFIG} was not written: {error}")

    def _finish(self, planned: Sequence[Planned], started: float) -> None:
        clear_counts(self.out)
        reached = {outcome.episode_id for outcome in self.report.episodes}
        self.report.not_reached = [one.episode_id for one in planned if one.episode_id not in reached]
        self.report.seconds = round(time.perf_counter() - started, 3)
        self.report.write(self.out)
        self.output.sent(REPORT)

    def _nothing(self) -> str:
        tried = len(self.report.episodes)
        first = next((one for one in self.report.episodes if one.reason), None)
        reason = f"; {first.source_id}: {first.reason}" if first is not None else ""
        return f"no episode of {self.root} could be ingested ({tried} tried){reason}"


def _settled(one: Planned) -> EpisodeOutcome:
    """The outcome of an episode that needs no work, or that cannot be looked at."""
    if one.unchanged is None:
        return EpisodeOutcome(
            episode_id=one.episode_id,
            source_id=one.ref.source_id,
            status="failed",
            reason=str(one.error),
            warnings=[_kept(one.episode_id)],
        )
    return EpisodeOutcome(
        episode_id=one.episode_id,
        source_id=one.ref.source_id,
        status="skipped",
        frames=one.unchanged.episode_length,
    )


def _kept(episode_id: str) -> str:
    return f"{episode_id} as it was ingested before stays in the output"


def _in_words(outcome: EpisodeOutcome) -> str:
    if outcome.status == "written":
        return f"{outcome.episode_id} written: {outcome.frames} frames in {outcome.seconds:.1f} s"
    if outcome.status == "skipped":
        return f"{outcome.episode_id} unchanged"
    return f"{outcome.episode_id} {outcome.status}: {outcome.reason}"
