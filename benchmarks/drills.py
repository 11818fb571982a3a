"""Drills: packs killed at random moments, and every byte of a packed file damaged in turn.

A number below 1 is a bug. ``KNONIK_DRILL_KILLS`` (20) and ``KNONIK_DRILL_SEED`` (0) choose how many kills, and when.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.common import ROOT, Ratio

__all__ = ["run", "timed"]

_PACK = """
import sys
from knonik_assets import pack_run
from knonik_assets.pack import pack
source, out, profile, shard_size, engine = sys.argv[1:]
if engine == "workers":  # as if there were too much to copy in one process
    engine, pack_run._FEW_BYTES = "processes", 0
workers = {"processes": 2}.get(engine)
pack(source, out, "drill", int(shard_size), 3, storage_profile=profile, engine=engine, workers=workers, overwrite=True)
"""
_PROFILES = ("compact_video", "training_fast", "training_compressed")
_ENGINES = ("inline", "processes")
_COPYING = ("inline", "processes", "workers")
"""Engines of packs that only copy, which one process does as long as it is little, with its threads side by side."""


def run() -> list[Ratio]:
    """All drills."""
    kills = int(os.environ.get("KNONIK_DRILL_KILLS", "20"))
    seed = int(os.environ.get("KNONIK_DRILL_SEED", "0"))
    return [*_killed(kills, seed), *_damaged()]


# -- kill -9 -----------------------------------------------------------------------------------------------------------


def _killed(kills: int, seed: int) -> list[Ratio]:
    from tests.assets.packing.support import write_episodes

    rng = random.Random(seed)
    with TemporaryDirectory() as folder:
        root = Path(folder)
        mixed = write_episodes(root / "mixed", (60, 70, 80), cameras=2, depth=True)
        jpegs = write_episodes(root / "jpegs", (150, 170, 190), cameras=2, depth=False, size=(240, 320))
        return [
            *_kinds(root, mixed, "", [(_PROFILES[n % 3], _ENGINES[n % 2]) for n in range(6)], kills, rng),
            *_kinds(root, jpegs, " that only copies", [("training_fast", e) for e in _COPYING], kills, rng),
        ]


def _kinds(
    root: Path, episodes: Path, of: str, ways: Sequence[tuple[str, str]], kills: int, rng: random.Random
) -> list[Ratio]:
    """Kill packs and re-packs of some episodes, the ways of packing them taking turns."""
    whole = {way: _undisturbed(episodes, root / f"whole{of}" / "-".join(way), *way) for way in ways}
    rows = []
    for what, repack in ((f"a pack{of}", False), (f"a re-pack{of}", True)):
        held, notes = 0, []
        for number in range(kills):
            way = ways[number % len(ways)]
            said = _one_kill(episodes, root / "out", *way, whole[way], rng, repack=repack)
            notes.append(said)
            sys.stderr.write(f"kill -9 of {what}: {said}\n")
            held += not said.startswith("WRONG")
        wrong = [note for note in notes if note.startswith("WRONG")]
        rows.append(Ratio(f"kill -9 of {what}", f"{kills} random moments", held / kills, "= 1.00", "; ".join(wrong)))
    return rows


Whole = tuple[float, Mapping[str, bytes], float, Mapping[str, bytes]]


def _undisturbed(episodes: Path, out: Path, profile: str, engine: str) -> Whole:
    """Seconds and files of a pack, and of a re-pack behind it."""
    first_s = _pack(episodes, out, profile, 10, engine)
    first = _tree(out)
    return first_s, first, _pack(episodes, out, profile, 7, engine), _tree(out)


def _one_kill(
    episodes: Path, out: Path, profile: str, engine: str, whole: Whole, rng: random.Random, *, repack: bool
) -> str:
    """Kill one run, look at what is visible, run again and compare; what happened, in a few words."""
    first_s, first, second_s, second = whole
    wanted, shard_size, work = (second, 7, second_s) if repack else (first, 10, first_s)
    moment, ended = work, True
    while ended:
        moment = rng.uniform(0, moment)  # where the machine was faster this time, an earlier one
        shutil.rmtree(out, ignore_errors=True)
        for name, data in first.items() if repack else ():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_bytes(data)
        ended = _pack(episodes, out, profile, shard_size, engine, kill_after=moment) >= 0
    visible = _tree(out)
    files = sum(name.endswith(".khlp") for name in visible)
    note = f"{profile}, {engine}, killed after {moment:.2f} s of {work:.2f} s, {files} files visible"
    wrong = [*_half_written(out)]
    if repack:
        wrong += [f"{name} of the old dataset changed" for name, data in first.items() if _lost(visible, name, data)]
    if visible.get("hlp_manifest.json") not in (None, wanted["hlp_manifest.json"], first["hlp_manifest.json"]):
        wrong.append("another manifest")
    _pack(episodes, out, profile, shard_size, engine)
    again = _tree(out)
    wrong += [
        f"{name} differs from an undisturbed run" for name in wanted | again if wanted.get(name) != again.get(name)
    ]
    return f"WRONG {note}: {', '.join(wrong[:3])}" if wrong else note


def _lost(visible: Mapping[str, bytes], name: str, data: bytes) -> bool:
    return name != "hlp_manifest.json" and visible.get(name) != data


def _half_written(out: Path) -> Iterator[str]:
    """What somebody who looks into the folder could take for finished, and is not."""
    from knonik_assets.packing.inspect import inspect_path
    from knonik_loader.errors import FormatError
    from knonik_loader.khlp.verify import verify_file

    for path in out.rglob("[!.]*.khlp"):  # hidden names are those that end in .partial
        yield from (damage.message for damage in verify_file(path))
    for path in [*out.glob("hlp_manifest*.json"), *out.rglob("[!.]*.khli")]:
        try:
            yield from inspect_path(path, verify=True)["damage"]
        except FormatError as error:
            yield str(error)


def _pack(
    episodes: Path, out: Path, profile: str, shard_size: int, engine: str, kill_after: float | None = None
) -> float:
    """Pack in a process of its own, see `timed`."""
    return timed([_PACK, *map(str, (episodes, out, profile, shard_size, engine))], out, kill_after)


def timed(program: list[str], out: Path, kill_after: float | None = None) -> float:
    """Run a Python text and its arguments in a session of their own, kill -9 it there if it works for too long.

    Seconds of work behind the moment at which it locked the output, -1 if killed.
    """
    command = [sys.executable, "-c", *program]
    lock = out / ".knonik" / "lock"
    lock.unlink(missing_ok=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    with (
        (out.parent / "said").open("w+") as said,
        subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=said) as process,
    ):
        while process.poll() is None and not lock.exists():
            time.sleep(0.001)
        began = time.monotonic()
        if kill_after is None:
            if process.wait():
                said.seek(0)
                raise RuntimeError(f"working on {out} failed: {said.read()[-800:]}")
            return time.monotonic() - began
        while process.poll() is None:
            if time.monotonic() - began >= kill_after:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return -1
            time.sleep(0.001)
        return time.monotonic() - began


def _tree(out: Path) -> dict[str, bytes]:
    from tests.support.road import tree

    return tree(out)


# -- damage ------------------------------------------------------------------------------------------------------------


def _damaged() -> list[Ratio]:
    from tests.loader.khlp.samples import PROFILES, build

    files = {profile: build(profile) for profile in PROFILES}
    tries: Mapping[str, Callable[[], Iterator[bool]]] = {
        "every bit of header and tail flipped": lambda: (ok for s in files.values() for ok in _tail_bits(s)),
        "every byte of the data flipped": lambda: (ok for s in files.values() for ok in _data_bytes(s)),
        "cut off at every byte": lambda: (ok for s in files.values() for ok in _cuts(s)),
        "tails of two files exchanged": lambda: (
            _refused(one.data[: one.summary.metadata_offset] + other.data[other.summary.metadata_offset :], None)
            for one in files.values()
            for other in files.values()
            if one is not other
        ),
        "text-mode transfers": lambda: (
            _refused(data, None)
            for s in files.values()
            for data in (s.data.replace(b"\r\n", b"\n"), s.data.replace(b"\n", b"\r\n"), bytes(c & 127 for c in s.data))
        ),
        "every bit of the sidecar flipped": _sidecar_bits,
    }
    rows = []
    for what, attempt in tries.items():
        found = list(attempt())
        rows.append(Ratio(what, f"{len(found)} damaged files", sum(found) / len(found), "= 1.00"))
    return rows


def _flip(data: bytes, at: int, mask: int) -> bytes:
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


def _refused(data: bytes, metadata_offset: int | None) -> bool:
    """Opening says which file, by a typed error; so does verifying."""
    from knonik_loader.errors import FormatError
    from knonik_loader.khlp.reader import open_index
    from knonik_loader.khlp.verify import verify_hlp

    def read(offset: int, length: int) -> bytes:
        return data[offset : offset + length]

    found = verify_hlp(read, len(data), metadata_offset, "the file")
    if not found or not all(damage.message.startswith("the file") for damage in found):
        return False
    try:
        open_index(read, len(data), metadata_offset, "the file")
    except FormatError as error:
        return "the file" in str(error)
    return False


def _tail_bits(sample: object) -> Iterator[bool]:
    data, meta = sample.data, sample.summary.metadata_offset  # type: ignore[attr-defined]
    for at in [*range(64), *range(meta, len(data))]:
        for mask in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            damaged = _flip(data, at, mask)
            # with the manifest's offset the header is not read, so that only verifying looks at it
            yield _refused(damaged, None) and (at < 64 or _refused(damaged, meta))


def _data_bytes(sample: object) -> Iterator[bool]:
    """A payload's byte is found where the payload is read, and padding by verifying: never a wrong frame."""
    from knonik_loader.errors import ChecksumError
    from knonik_loader.khlp.verify import verify_hlp
    from tests.loader.khlp.samples import decode_all, reader

    index, data = sample.index(), sample.data  # type: ignore[attr-defined]
    truth = decode_all(index, data)
    for at in range(64, index.metadata_offset):
        damaged = _flip(data, at, 0x10)
        found = verify_hlp(reader(damaged), len(damaged), None, "the file")
        if len(found) != 1 or not found[0].message.startswith("the file"):
            yield False
        elif "padding" in found[0].message:
            frames = decode_all(index, damaged)
            yield all((frames[key] == stack).all() for key, stack in truth.items())
        else:
            try:
                decode_all(index, damaged)
            except ChecksumError:
                yield "shard" in found[0].message and "record" in found[0].message
            else:
                yield False


def _cuts(sample: object) -> Iterator[bool]:
    data, meta = sample.data, sample.summary.metadata_offset  # type: ignore[attr-defined]
    return (_refused(data[:cut], offset) for cut in range(len(data)) for offset in (None, meta))


def _sidecar_bits() -> Iterator[bool]:
    from knonik_loader.errors import FormatError
    from knonik_loader.khlp.index import DatasetIndex
    from tests.loader.khlp.make_golden import index_sample

    data = index_sample().to_bytes()
    for at in range(len(data)):
        for mask in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            try:
                DatasetIndex.from_bytes(_flip(data, at, mask), "the index")
            except FormatError as error:
                yield "the index" in str(error)
            else:
                yield False
