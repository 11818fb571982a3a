"""Drill: ingests of several episodes killed at random moments, fresh ones and ones that replace older episodes.

A number below 1 is a bug. ``KNONIK_DRILL_KILLS`` (20) and ``KNONIK_DRILL_SEED`` (0) choose how many kills, and when.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.common import Ratio
from benchmarks.drills import timed

__all__ = ["run"]

_INGEST = """
import sys
from knonik_assets.ingest import run
config, raw, out, engine = sys.argv[1:]
run(config, raw, out, engine=engine, workers={"processes": 2}.get(engine))
"""
_LENGTHS = (40, 25, 50, 30, 45, 35)
_ENGINES = ("inline", "processes")
_CODECS = ("vp9", "jpeg", "h264")


@dataclass(frozen=True)
class _Case:
    """One config: how long an undisturbed run takes, and what it leaves; of a fresh run and of one that replaces."""

    fresh: Path
    """Config of the first run."""
    other: Path
    """Config of a second one, under which every episode is written anew."""
    engine: str
    whole: tuple[tuple[float, Mapping[str, bytes]], tuple[float, Mapping[str, bytes]]]
    kept: Path
    """The output of the first run, bookkeeping and all."""


def run() -> list[Ratio]:
    """Kills of fresh ingests, then of ingests into a folder of older episodes."""
    from tests.support.road import write_raw

    kills = int(os.environ.get("KNONIK_DRILL_KILLS", "20"))
    rng = random.Random(int(os.environ.get("KNONIK_DRILL_SEED", "0")))
    rows = []
    with TemporaryDirectory() as folder:
        root = Path(folder)
        raw = write_raw(root / "raw", list(_LENGTHS))
        cases = [_case(root / f"{codec}_{engine}", raw, codec, engine) for codec in _CODECS for engine in _ENGINES]
        for what, replaces in (("an ingest", False), ("an ingest that replaces episodes", True)):
            said = []
            for number in range(kills):
                said.append(_one_kill(cases[number % len(cases)], raw, root / "out", rng, replaces=replaces))
                sys.stderr.write(f"kill -9 of {what}: {said[-1]}\n")
            wrong = [note for note in said if note.startswith("WRONG")]
            held = (kills - len(wrong)) / kills
            rows.append(Ratio(f"kill -9 of {what}", f"{kills} random moments", held, "= 1.00", "; ".join(wrong)))
    return rows


def _case(folder: Path, raw: Path, codec: str, engine: str) -> _Case:
    from tests.support.road import ingest_config, write_json

    folder.mkdir()
    configs = [
        write_json(folder / f"{name}.json", ingest_config(preset={"rgb": {"codec": codec, "quality": quality}}))
        for name, quality in (("fresh", 30), ("other", 24))
    ]
    out = folder / "out"
    first = _ingest(configs[0], raw, out, engine), _tree(out)
    shutil.copytree(out, folder / "kept")
    second = _ingest(configs[1], raw, out, engine), _tree(out)
    changed = [name for name in first[1] if name.endswith("metadata.json") and first[1][name] != second[1][name]]
    if len(changed) != len(_LENGTHS):
        raise RuntimeError("the second config does not replace the episodes")
    return _Case(*configs, engine, (first, second), folder / "kept")


def _one_kill(case: _Case, raw: Path, out: Path, rng: random.Random, *, replaces: bool) -> str:
    """Kill one run, look at what is visible, run again and compare; what happened, in a few words."""
    config = case.other if replaces else case.fresh
    moment, wanted = case.whole[replaces]
    work, ended = moment, True
    while ended:
        moment = rng.uniform(0, moment)  # where the machine was faster this time, an earlier one
        shutil.rmtree(out, ignore_errors=True)
        if replaces:
            shutil.copytree(case.kept, out)
        ended = _ingest(config, raw, out, case.engine, kill_after=moment) >= 0
    visible = _tree(out)
    episodes = sorted(out.glob("episode_*"))
    note = f"{case.fresh.parent.name}, killed after {moment:.2f} s of {work:.2f} s, {len(episodes)} episodes visible"
    wrong = [*_half_written(out)]
    known = (case.whole[0][1], case.whole[1][1]) if replaces else (wanted,)
    for path in episodes:
        files = _of(visible, path.name)
        if all(files != _of(each, path.name) for each in known):
            wrong.append(f"{path.name} is neither the old nor the new episode")
    if replaces and len(episodes) != len(_LENGTHS):
        wrong.append("an old episode is lost")
    _ingest(config, raw, out, case.engine)
    again = _tree(out)
    wrong += [
        f"{name} differs from an undisturbed run" for name in wanted | again if wanted.get(name) != again.get(name)
    ]
    wrong += [f"{path.relative_to(out)} was left behind" for path in out.rglob("*.partial*")]
    return f"WRONG {note}: {', '.join(wrong[:3])}" if wrong else note


def _of(files: Mapping[str, bytes], episode: str) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name.startswith(f"{episode}/")}


def _half_written(out: Path) -> Iterator[str]:
    """What somebody who looks into the folder could take for finished, and is not."""
    from knonik_assets.episodes.reader import EpisodeReader
    from knonik_loader.errors import KnonikError

    for path in sorted(out.glob("episode_*")):
        try:
            yield from (f"{path.name}: {damage}" for damage in EpisodeReader(path).verify())
        except KnonikError as error:
            yield str(error)
    for path in out.glob("*.json"):
        try:
            json.loads(path.read_text())
        except ValueError:
            yield f"{path.name} is half a file"


def _ingest(config: Path, raw: Path, out: Path, engine: str, kill_after: float | None = None) -> float:
    return timed([_INGEST, *map(str, (config, raw, out, engine))], out, kill_after)


def _tree(out: Path) -> dict[str, bytes]:
    from tests.support.road import tree

    return tree(out)
