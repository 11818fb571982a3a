"""What each colour codec costs and saves, against JPEGs and LeRobot's AV1 of the same frames, a thread each.

The JPEG peer is quality 90, 4:2:0, decoded by bare simplejpeg into reused memory; the AV1 peer is what LeRobot encodes
by default (svt-av1, crf 30, gop 2), decoded by bare PyAV from the nearest keyframe. ``KNONIK_BENCH_CLIPS`` names
recordings in ALOHA's layout with the cameras ``top`` (still) and ``wrist`` (moving); without it only the committed
sample is used.

Every clip comes twice: as raw frames, and "from q95": as an episode of the ``jpeg`` preset holds it, in JPEGs of that
quality. KIMG and KDLT are then given those JPEGs and SHDR their frames, as in packing; both peers encode their frames,
and fidelity is measured against them.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import h5py
import numpy as np
import numpy.typing as npt
import simplejpeg

from benchmarks.common import SAMPLE, Ratio, alternate
from knonik_assets.packing.fidelity import luma_psnr
from knonik_loader.khlp.codec_contract import record_table
from knonik_loader.khlp.codecs import dependency_of, make_codec
from knonik_loader.khlp.planning import Group, closure
from knonik_loader.khlp.types import Record, StreamInfo

Frames = npt.NDArray[np.uint8]

SHARD, WINDOW = 45, 4
REPEATS = 7
SOURCE_QUALITY = 95
LEROBOT_OPTIONS = {"g": "2", "crf": "30"}


@dataclass(frozen=True)
class Clip:
    """Shards of frames, (SHARD, H, W, 3) each, and the rate (if any) and bytes against JPEG asked of KDLT on them."""

    name: str
    shards: list[Frames]
    least_rate: float | None
    most_bytes: float
    jpegs: list[list[bytes]] | None = None
    """The same frames as the source stored them, where those were JPEGs."""

    @property
    def frames(self) -> int:
        return sum(len(shard) for shard in self.shards)


def clips() -> Iterator[Clip]:
    """The clips one after another, so that only two are in memory: each as it is, and as it comes out of JPEGs."""
    for clip in _raw_clips():
        yield clip
        jpegs = [[_jpeg(frame, SOURCE_QUALITY) for frame in shard] for shard in clip.shards]
        shards = [np.stack([simplejpeg.decode_jpeg(data, "RGB", False, False) for data in shard]) for shard in jpegs]
        yield Clip(f"{clip.name} from q{SOURCE_QUALITY}", shards, clip.least_rate, clip.most_bytes, jpegs)


def _raw_clips() -> Iterator[Clip]:
    folder = os.environ.get("KNONIK_BENCH_CLIPS")
    if folder:
        paths = sorted(Path(folder).glob("*.hdf5"))[:5]
        # one shard an episode: each has its own background
        yield Clip("still", [_read(path, "top", 60) for path in paths], 1.3, 0.5)
        yield Clip("flicker", [_flicker(_read(path, "top", 60), seed) for seed, path in enumerate(paths)], None, 0.7)
        yield Clip("moving", [_read(path, "wrist", 60) for path in paths], 0.95, 1.0)
    paths = sorted(SAMPLE.glob("*.hdf5"))
    yield Clip("sim", [_read(path, camera, 0) for path in paths for camera in ("top", "angle")], None, 0.7)


def _read(path: Path, camera: str, first: int) -> Frames:
    with h5py.File(path) as file:
        rows = file[f"observations/images/{camera}"][first : first + SHARD]
    if rows.ndim == 4:
        return np.asarray(rows)
    # the sample's recorder gave RGB pictures to OpenCV's encoder
    return np.stack([simplejpeg.decode_jpeg(row.tobytes(), "BGR") for row in rows])


def _jpeg(frame: Frames, quality: int) -> bytes:
    data: bytes = simplejpeg.encode_jpeg(np.ascontiguousarray(frame), quality, "RGB", "420", fastdct=False)
    return data


def _flicker(frames: Frames, seed: int) -> Frames:
    """2 % of exposure, as lamps beat with a shutter: another gain every frame."""
    phase = np.random.default_rng(seed).uniform(0, 2 * np.pi)
    gains = 1 + 0.02 * np.sin(phase + 2.3 * np.arange(len(frames)))
    for frame, gain in zip(frames, gains, strict=True):
        frame[...] = np.clip(np.rint(frame * gain), 0, 255)
    return frames


def info(codec: str, shape: Sequence[int], **params: object) -> StreamInfo:
    return StreamInfo(0, "rgb", "camera", codec, tuple(shape), "uint8", 30.0, params=params)


def sampled(shard: Frames) -> list[int]:
    """Rows whose fidelity is measured: a third of them, in no rhythm."""
    return sorted(np.random.default_rng(3).permutation(len(shard))[: len(shard) // 3].tolist())


def mean_psnr(found: list[float]) -> float:
    """Mean over frames in dB, those left out that are equal to their originals: JPEGs of the source that passed."""
    return float(np.mean([value for value in found if np.isfinite(value)] or [np.inf]))


def windows(shards: Sequence[Sequence[object]], count: int) -> list[tuple[int, int]]:
    """(shard, first row) of random windows."""
    rng = np.random.default_rng(1)
    return [(int(n), int(rng.integers(len(shards[n]) - WINDOW + 1))) for n in rng.integers(len(shards), size=count)]


def seconds(call: Callable[[], object]) -> float:
    """Processor time of this thread: what another process does at the same time does not count."""
    start = time.thread_time()
    call()
    return time.thread_time() - start


class Packed:
    """A clip in one of our codecs, read as the engine reads: by groups, with exactly the records each needs."""

    def __init__(self, clip: Clip, codec: str, **params: object) -> None:
        self.stream = info(codec, clip.shards[0].shape[1:], **params)
        self.codec = make_codec(self.stream)
        given = clip.jpegs if clip.jpegs and codec in ("kimg", "kdlt") else [list(shard) for shard in clip.shards]
        start = time.thread_time()
        self.records: list[list[Record]] = [self.codec.encode(shard) for shard in given]
        self.encode_rate = clip.frames / (time.thread_time() - start)
        self.views = [[memoryview(record.data) for record in shard] for shard in self.records]
        self.tables = [record_table(shard) for shard in self.records]
        self.out = np.zeros((64, *self.stream.shape), np.uint8)

    @property
    def bytes(self) -> int:
        return sum(len(record.data) for shard in self.records for record in shard)

    def read(self, shard: int, rows: Sequence[int], slot: int = 0) -> None:
        for group in self.groups(shard, rows):
            out = {row: self.out[(slot + rows.index(row)) % len(self.out)] for row in group.wanted.tolist()}
            self.codec.decode({row: self.views[shard][row] for row in group.rows.tolist()}, list(out), out)

    def groups(self, shard: int, rows: Sequence[int]) -> list[Group]:
        return closure(self.tables[shard], dependency_of(self.stream.codec), rows)

    def plan(self, places: list[tuple[int, int]]) -> list[tuple[dict[int, memoryview], list[int], dict[int, Frames]]]:
        """What the codec is called with for windows: planning is the loader's work, and not timed."""
        calls = []
        for slot, (shard, first) in enumerate(places):
            rows = list(range(first, first + WINDOW))
            for group in self.groups(shard, rows):
                wanted = group.wanted.tolist()
                out = {row: self.out[(slot * WINDOW + row - first) % len(self.out)] for row in wanted}
                calls.append(({row: self.views[shard][row] for row in group.rows.tolist()}, wanted, out))
        return calls

    def read_planned(self, calls: list[tuple[dict[int, memoryview], list[int], dict[int, Frames]]]) -> None:
        for records, wanted, out in calls:
            self.codec.decode(records, wanted, out)

    def psnr(self, clip: Clip) -> float:
        """Mean luma PSNR over a third of the frames."""
        found = []
        for number, shard in enumerate(clip.shards):
            for row in sampled(shard):
                self.read(number, [row])
                found.append(luma_psnr(shard[row], self.out[0]))
        return mean_psnr(found)


class Jpegs:
    """The clip as plain JPEGs, decoded by simplejpeg alone."""

    def __init__(self, clip: Clip, quality: int = 90, *, stored: bool = False) -> None:
        """Encode a clip, or take the JPEGs that its source ``stored``, if it did."""
        found = clip.jpegs if stored else None
        self.data = found or [[_jpeg(frame, quality) for frame in shard] for shard in clip.shards]
        self.out = np.zeros((64, *clip.shards[0].shape[1:]), np.uint8)

    @property
    def bytes(self) -> int:
        return sum(len(data) for shard in self.data for data in shard)

    def read_windows(self, places: list[tuple[int, int]]) -> None:
        slot = 0
        for shard, first in places:
            for row in range(first, first + WINDOW):
                simplejpeg.decode_jpeg(self.data[shard][row], "RGB", False, False, buffer=self.out[slot % 64])
                slot += 1

    def psnr(self, clip: Clip) -> float:
        return mean_psnr(
            [
                luma_psnr(shard[row], simplejpeg.decode_jpeg(data[row], "RGB", False, False))
                for shard, data in zip(clip.shards, self.data, strict=True)
                for row in sampled(shard)
            ]
        )


class LeRobotVideo:
    """The clip as LeRobot stores it: a file a shard, opened once, decoded from the nearest keyframe on."""

    def __init__(self, clip: Clip, folder: Path) -> None:
        os.environ.setdefault("SVT_LOG", "1")
        self.paths = []
        for number, shard in enumerate(clip.shards):
            path = folder / f"{clip.name}_{number}.mp4"
            with av.open(path, "w") as output:
                stream = output.add_stream("libsvtav1", 30, options=LEROBOT_OPTIONS)
                stream.pix_fmt, stream.height, stream.width = "yuv420p", shard.shape[1], shard.shape[2]
                for frame in shard:
                    output.mux(stream.encode(av.VideoFrame.from_ndarray(frame, "rgb24")))
                output.mux(stream.encode())
            self.paths.append(path)
        self.files = [av.open(path) for path in self.paths]
        for file in self.files:
            file.streams.video[0].codec_context.thread_count = 1
        self.out = np.zeros((64, *clip.shards[0].shape[1:]), np.uint8)

    @property
    def bytes(self) -> int:
        """Of the packets alone, without the container."""
        total = 0
        for path in self.paths:
            with av.open(path) as file:
                total += sum(packet.size for packet in file.demux(video=0))
        return total

    def read(self, shard: int, first: int, count: int, slot: int = 0) -> None:
        file = self.files[shard]
        stream = file.streams.video[0]
        assert stream.time_base is not None
        step = int(1 / (Fraction(30) * stream.time_base))
        file.seek(first * step, stream=stream)
        for frame in file.decode(stream):
            assert frame.pts is not None
            row = round(frame.pts / step)
            if row >= first:
                self.out[(slot + row - first) % len(self.out)] = frame.to_ndarray(format="rgb24")
            if row == first + count - 1:
                break

    def read_windows(self, places: list[tuple[int, int]]) -> None:
        for slot, (shard, first) in enumerate(places):
            self.read(shard, first, WINDOW, slot * WINDOW)

    def psnr(self, clip: Clip) -> float:
        found = []
        for number, shard in enumerate(clip.shards):
            for row in sampled(shard):
                self.read(number, row, 1)
                found.append(luma_psnr(shard[row], self.out[0]))
        return mean_psnr(found)

    def close(self) -> None:
        for file in self.files:
            file.close()


def kimg_rows(clip: Clip) -> list[Ratio]:
    """Through the interface against the bare decoder, the same bytes: on one thread, and on two."""
    packed = Packed(clip, "kimg", quality=90)
    bare = Jpegs(clip, stored=True)
    assert [record.data for record in packed.records[0]] == bare.data[0]
    places = windows(clip.shards, 12)
    calls = packed.plan(places)
    plain, ours = alternate(
        3 * REPEATS,
        lambda: seconds(lambda: bare.read_windows(places)),
        lambda: seconds(lambda: packed.read_planned(calls)),
    )
    name = f"KIMG through the interface, {clip.name}"
    rows = [Ratio(name, "simplejpeg, 1 thread", plain / ours, ">= 0.97", _rate(places, ours))]

    other, other_bare = Packed(clip, "kimg", quality=90), Jpegs(clip, stored=True)
    other_calls = other.plan(places)

    def both(*work: Callable[[], None]) -> float:
        """Processor time of two threads at work side by side."""
        with ThreadPoolExecutor(2) as pool:
            return sum(pool.map(seconds, work)) / 2

    plain, ours = alternate(
        3 * REPEATS,
        lambda: both(lambda: bare.read_windows(places), lambda: other_bare.read_windows(places)),
        lambda: both(lambda: packed.read_planned(calls), lambda: other.read_planned(other_calls)),
    )
    rows.append(Ratio(name, "simplejpeg, 2 threads", plain / ours, ">= 0.97", _rate(places, ours)))
    return rows


def kdlt_rows(clip: Clip, **params: object) -> list[Ratio]:
    packed, bare = Packed(clip, "kdlt", **params), Jpegs(clip)
    places = windows(clip.shards, 40)
    calls = packed.plan(places)
    plain, ours = alternate(
        REPEATS,
        lambda: seconds(lambda: bare.read_windows(places)),
        lambda: seconds(lambda: packed.read_planned(calls)),
    )
    name = f"KDLT, {clip.name}"
    rows = [
        Ratio(
            f"{name}: windows of 4",
            "JPEG q90",
            plain / ours,
            f">= {clip.least_rate}" if clip.least_rate else "reported",
            _rate(places, ours),
        ),
        Ratio(
            f"{name}: bytes", "JPEG q90", packed.bytes / bare.bytes, f"<= {clip.most_bytes}", _size(clip, packed.bytes)
        ),
    ]
    psnr, peer = packed.psnr(clip), bare.psnr(clip)
    rows.append(
        Ratio(f"{name}: PSNR-Y, dB apart", "JPEG q90", psnr - peer, ">= -1.5", f"{psnr:.1f}, JPEG {peer:.1f} dB")
    )
    rows.append(Ratio(f"{name}: encode", "100 frames/s a core", packed.encode_rate / 100, ">= 1.0"))
    deltas = [(n, row) for n, shard in enumerate(packed.records) for row, record in enumerate(shard) if record.key_back]
    intra = sum(record.intra for shard in packed.records for record in shard)
    keys = clip.frames - len(deltas) - intra
    rows[1] = Ratio(*_fields(rows[1])[:4], f"{rows[1].detail}; {keys} keys, {intra} whole, {len(deltas)} deltas")
    if len(deltas) >= clip.frames // 4:
        rows.append(_delta_alone(packed, bare, deltas, ">= 2.5" if clip.name.startswith("still") else "reported"))
    return rows


def _delta_alone(packed: Packed, bare: Jpegs, deltas: list[tuple[int, int]], wanted: str) -> Ratio:
    """Every delta by itself, its decoded key at hand."""
    chosen = [deltas[n] for n in np.random.default_rng(2).permutation(len(deltas))[:80]]
    keys = {}
    for shard, row in chosen:
        key = row - packed.records[shard][row].key_back
        if (shard, key) not in keys:
            packed.read(shard, [key])
            keys[shard, key] = packed.out[0].copy()

    def ours() -> None:
        for slot, (shard, row) in enumerate(chosen):
            key = keys[shard, row - packed.records[shard][row].key_back]
            views = {row: packed.views[shard][row]}
            packed.codec.decode(views, [row], {row: packed.out[slot % 64]}, key=key)  # type: ignore[call-arg]

    def plain() -> None:
        for slot, (shard, row) in enumerate(chosen):
            simplejpeg.decode_jpeg(bare.data[shard][row], "RGB", False, False, buffer=bare.out[slot % 64])

    slow, fast = alternate(REPEATS, lambda: seconds(plain), lambda: seconds(ours))
    detail = f"{1000 * fast / len(chosen):.2f} ms a frame"
    return Ratio("KDLT: a delta alone, its key in memory", "JPEG q90", slow / fast, wanted, detail)


def shdr_rows(clip: Clip, folder: Path, **params: object) -> list[Ratio]:
    packed, peer, bare = Packed(clip, "shdr", ceiling=46.5, **params), LeRobotVideo(clip, folder), Jpegs(clip)
    places = windows(clip.shards, 20)
    calls = packed.plan(places)
    theirs, ours, jpeg = alternate(
        5,
        lambda: seconds(lambda: peer.read_windows(places)),
        lambda: seconds(lambda: packed.read_planned(calls)),
        lambda: seconds(lambda: bare.read_windows(places)),
    )
    name, against = f"SHDR, {clip.name}", "LeRobot's AV1"
    psnr, peer_psnr = packed.psnr(clip), peer.psnr(clip)
    rows = [
        Ratio(f"{name}: windows of 4", against, theirs / ours, ">= 1.1", f"{jpeg / ours:.2f} of JPEG q90's"),
        Ratio(f"{name}: bytes", against, packed.bytes / peer.bytes, "< 1.0", _size(clip, packed.bytes)),
        Ratio(f"{name}: PSNR-Y, dB apart", against, psnr - peer_psnr, ">= 0", f"{psnr:.1f}, AV1 {peer_psnr:.1f} dB"),
        Ratio(
            f"{name}: bytes", "JPEG q90", packed.bytes / bare.bytes, "reported", f"encode {packed.encode_rate:.0f}/s"
        ),
    ]
    peer.close()
    return rows


def _fields(row: Ratio) -> tuple[str, str, float, str, str]:
    return row.what, row.against, row.ratio, row.wanted, row.detail


def _rate(places: Sequence[object], elapsed: float) -> str:
    return f"{1000 * elapsed / (len(places) * WINDOW):.2f} ms a frame"


def _size(clip: Clip, size: int) -> str:
    return f"{size / clip.frames / 1000:.1f} kB a frame"


def run() -> list[Ratio]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for clip in clips():
            if clip.name.startswith(("still", "sim")):
                rows += kimg_rows(clip)
            rows += kdlt_rows(clip)
            rows += shdr_rows(clip, Path(folder))
    return rows
