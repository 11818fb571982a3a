"""A pack's work on an engine: files side by side, or the shards of a few files, with the same bytes either way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

from knonik_assets.engine import Engine, Outcome, default_workers
from knonik_assets.packing.staging import Desk
from knonik_assets.packing.transcode import (
    FileResult,
    FileTask,
    assemble,
    encode_shard,
    one_by_one,
    stored_file,
)
from knonik_loader.errors import PackError
from knonik_loader.khlp.writer import ShardInput

__all__ = ["FILES_A_LANE", "SHARDS_A_LANE", "Listener", "each", "each_in_threads", "splits_files", "write_files"]

FILES_A_LANE = 4
"""From so many files a lane on, lanes write whole files: few enough of them stand idle at the end."""

SHARDS_A_LANE = 2
"""Encoded shards a lane that are held at most, where shards are the unit of work."""

Task = TypeVar("Task")
Value = TypeVar("Value")


class Listener(Protocol):
    """Is told how far the work is."""

    def begin(self, total: int, what: str = ..., folder: Path | None = None) -> None:
        """So many pieces lie ahead; ``folder`` is where workers leave counts of their frames."""

    def advance(self, text: str = ..., count: int = 1) -> None:
        """So many more are done."""

    def end(self) -> None:
        """The work is over, however it went."""


def splits_files(engine: Engine, files: int) -> bool:
    """Whether so many files are too few to keep every lane busy with files of its own."""
    return engine.lanes > 1 and files < FILES_A_LANE * engine.lanes


def write_files(
    engine: Engine,
    tasks: Sequence[FileTask],
    write: Callable[[FileTask], FileResult],
    progress: Listener | None,
    counts: Path,
) -> list[FileResult]:
    """Write all files of a dataset.

    Where there are many files, each is written by the worker that encodes it. Where there are few, workers encode
    shards and this process writes them in order, one file at a time. Shards pass through memory then, at most
    `SHARDS_A_LANE` of them a lane.

    Args:
        engine: where.
        tasks: the files.
        write: `knonik_assets.packing.transcode.write_file`, or what calls it; picklable.
        progress: hears of every shard.
        counts: where ``write`` leaves counts of its frames.

    Returns:
        Results in the tasks' order.

    Raises:
        EpisodeError, PackError, StorageError: the first failure ends the work.
    """
    # an episode at a URL is fetched once a file, or once a shard: whole files are worth an idle lane at the end
    far = bool(tasks) and tasks[0].staging.source.is_remote and len(tasks) >= engine.lanes
    shards = splits_files(engine, len(tasks)) and not far
    with _told(progress, sum(len(task.shards) for task in tasks), "shards", None if shards else counts):
        return _by_shards(engine, tasks, progress) if shards else _by_files(engine, tasks, write, progress)


def each(
    engine: Engine,
    fn: Callable[[Task], Value],
    tasks: Sequence[Task],
    names: Sequence[str],
    progress: Listener | None,
    what: str,
) -> list[Value]:
    """Results in the tasks' order; the first failure ends the work.

    Raises:
        KnonikError: what the function raised; PackError where it raised something else, or its worker died.
    """
    values: dict[int, Value] = {}
    with _told(progress, len(tasks), what), closing(engine.map(fn, tasks)) as outcomes:
        for outcome in outcomes:
            values[outcome.index] = _value(outcome, names[outcome.index])
            if progress is not None:
                progress.advance(names[outcome.index])
    return [values[index] for index in range(len(tasks))]


def each_in_threads(
    fn: Callable[[Task], Value], tasks: Sequence[Task], names: Sequence[str], progress: Listener | None, what: str
) -> list[Value]:
    """`each`, in threads of this process: for work that is over before a worker process would have started.

    Raises:
        KnonikError: what the function raised first, in the tasks' order; the rest is not begun.
    """
    values: list[Value] = []
    with _told(progress, len(tasks), what), ThreadPoolExecutor(default_workers()) as pool:
        try:
            for name, value in zip(names, pool.map(fn, tasks), strict=True):
                values.append(value)
                if progress is not None:
                    progress.advance(name)
        finally:
            pool.shutdown(cancel_futures=True)
    return values


@contextmanager
def _told(progress: Listener | None, total: int, what: str, folder: Path | None = None) -> Iterator[None]:
    try:
        if progress is not None:
            progress.begin(total, what, folder)
        yield
    finally:
        if progress is not None:
            progress.end()


def _value(outcome: Outcome[Any, Value], name: str) -> Value:
    error = outcome.error
    if outcome.died:
        raise PackError(
            f"{name}: the worker process died {outcome.attempts} times (out of memory, or a crash inside a library); "
            "fewer --workers and a smaller --shard-size need less memory."
        ) from error
    if error is not None and outcome.details:
        error.add_note(outcome.details)
        raise PackError(f"{name}: {error}") from error
    if error is not None or outcome.value is None:
        raise error or PackError(f"{name} gave nothing back.")
    return outcome.value


def _label(task: FileTask) -> str:
    return f"{task.name}: {sum(shard.frames for shard in task.shards)} frames"


# -- a file at a time ----------------------------------------------------------------------------------------------


def _by_files(
    engine: Engine,
    tasks: Sequence[FileTask],
    write: Callable[[FileTask], FileResult],
    progress: Listener | None,
) -> list[FileResult]:
    results: dict[int, FileResult] = {}
    with closing(engine.map(write, tasks)) as outcomes:
        for outcome in outcomes:
            results[outcome.index] = _value(outcome, _label(outcome.item))
            if progress is not None:
                progress.advance(_label(outcome.item), len(outcome.item.shards))
    return [results[index] for index in range(len(tasks))]


# -- a shard at a time ---------------------------------------------------------------------------------------------


def _by_shards(engine: Engine, tasks: Sequence[FileTask], progress: Listener | None) -> list[FileResult]:
    kept = [stored_file(task) for task in tasks]
    pieces = [piece for task, file in zip(tasks, kept, strict=True) if file is None for piece in one_by_one(task)]
    results: list[FileResult] = []
    ahead = SHARDS_A_LANE * engine.lanes
    with closing(engine.map(encode_shard, pieces, ahead=ahead)) as outcomes:
        encoded = _in_order(outcomes)
        for task, file in zip(tasks, kept, strict=True):
            count = len(task.shards)
            results.append(file or _written(task, _heard(islice(encoded, count), count - 1, progress)))
            if progress is not None:
                progress.advance(_label(task), 1 if file is None else count)
    return results


def _written(task: FileTask, shards: Iterator[ShardInput]) -> FileResult:
    def write(desk: Desk) -> FileResult:
        return assemble(task, desk, shards)

    return task.staging.work(task.name, write, pinned=True)


def _in_order(outcomes: Iterable[Outcome[FileTask, ShardInput]]) -> Iterator[ShardInput]:
    """Shards in the order of their tasks, the later ones held back."""
    held: dict[int, ShardInput] = {}
    wanted = 0
    for outcome in outcomes:
        (shard,) = outcome.item.shards
        name = f"{outcome.item.name}, {shard.episode_id} from frame {shard.first_frame}"
        held[outcome.index] = _value(outcome, name)
        while wanted in held:
            yield held.pop(wanted)
            wanted += 1


def _heard(shards: Iterable[ShardInput], but_last: int, progress: Listener | None) -> Iterator[ShardInput]:
    """The shards as they are written, all but the last told of: the file's end tells of that one."""
    for number, shard in enumerate(shards):
        yield shard
        if progress is not None and number < but_last:
            progress.advance()
