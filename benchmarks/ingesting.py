"""Ingest rate: against a bare PyAV loop that encodes the same frames, and JPEGs that pass against copying their files.

All from the page cache, on all cores, whole calls of ``run()`` into an empty folder: start of the workers, reading,
checksums, reading back what was written, and fsyncs included. The bare loop encodes frames that are in memory, once as
RGB (conversion included) and once as YUV (the encoder alone), with the same encoder and options, one thread a stream,
as many streams at once as there are cores, into files that nobody waits for. Episodes are 300 frames of each camera,
the recordings taken more than once, so that as few frames are held as fit in memory. The copy is `shutil.copyfile` of
the raw files, once with an fsync each, as ingest ends on the disk too, and once without. Ingest decodes every JPEG
before it lets it pass, which no copy does: the checks alone, on as many threads as there are cores and with the
pictures in memory, bound what any ingest that looks at them can reach; a bare loop that looks at nothing, but reads
rows with h5py, muxes them with PyAV, hashes source and result and waits for the disk, in as many processes as there are
cores and those started before, bounds what one could reach that does not. Workers take half a second to start, whatever
there is to do: JPEGs are passed once, and several times over, as real datasets hold more. ``KNONIK_BENCH_CLIPS`` names
the recordings, ``KNONIK_BENCH_FOLDER`` where files go.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import shutil
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import av
import numpy as np

from benchmarks.common import Ratio, alternate, clips_folder

__all__ = ["run"]

FRAMES = 300
CLIPS = 2
EPISODES = 4
MORE = 4
PRESETS: dict[str, Any] = {
    "medium (vp9)": "medium",
    "h264": {"rgb": {"codec": "h264", "quality": 20, "gop": 10}},
}


def _raw(root: Path, frames: int | None, clips: int | None, *, jpeg: bool) -> tuple[Path, int]:
    """Recordings of arrays or of JPEG rows; gives their folder and how many frames of all cameras they hold."""
    import h5py
    import simplejpeg

    root.mkdir()
    count = 0
    for clip in sorted(clips_folder().glob("episode_*.hdf5"))[:clips]:
        with h5py.File(clip) as source, h5py.File(root / clip.name, "w") as target:
            target["action"] = source["action"][:frames]
            for name, camera in source["observations/images"].items():
                video = camera[:frames]
                count += len(video)
                if jpeg:
                    rows = target.create_dataset(f"cam/{name}", (len(video),), h5py.vlen_dtype(np.uint8))
                    for place, picture in enumerate(video):
                        data = simplejpeg.encode_jpeg(picture, quality=90, colorsubsampling="420")
                        rows[place] = np.frombuffer(data, np.uint8)
                else:
                    target.create_dataset(f"cam/{name}", data=video, chunks=(1, *video.shape[1:]))
    return root, count


def _ingest(raw: Path, out: Path, preset: Any) -> float:
    from knonik_assets.ingest import run as ingest

    shutil.rmtree(out, ignore_errors=True)
    began = time.perf_counter()
    report = ingest({"dir_type": "episodic", "data_type": "hdf5", "fps": 30, "preset": preset}, raw, out)
    seconds = time.perf_counter() - began
    assert report.ok
    return seconds


def _streams(raw: Path) -> list[np.ndarray]:
    import h5py

    found = []
    for path in sorted(raw.glob("*.hdf5")):
        with h5py.File(path) as file:
            found += [camera[:] for camera in file["cam"].values()]
    return found


def _bare(streams: list[np.ndarray], folder: Path, preset: Any, *, converted: bool) -> float:
    """Seconds of the loop alone; ``converted`` frames are YUV before it begins."""
    from knonik_assets.configs.presets import resolve_preset
    from knonik_assets.episodes.video_sinks import EncoderSink

    rgb = resolve_preset(preset, None, "benchmark").rgb
    frames: list[list[av.VideoFrame]] = [
        [av.VideoFrame.from_ndarray(picture, format="rgb24") for picture in video] for video in streams
    ]
    if converted:
        frames = [[frame.reformat(format="yuv420p") for frame in video] for video in frames]

    def encode(place: int) -> None:
        # the writer's own stream, so that the settings are the same, but none of what it does around the encoder
        suffix = "webm" if rgb.codec in ("vp9", "av1") else "mkv"
        video = frames[place % len(frames)]
        sink = EncoderSink(folder / f"{place}.{suffix}", (video[0].height, video[0].width), rgb.codec, rgb, 30.0)
        stream, container = sink._stream, sink._container
        for index, frame in enumerate(video):
            picture = frame if converted else frame.reformat(format="yuv420p")
            picture.pts, picture.time_base = round(index * 1000 / 30), stream.codec_context.time_base
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
        container.close()

    began = time.perf_counter()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(encode, range(len(streams) * EPISODES // CLIPS)))
    return time.perf_counter() - began


def _copy(raw: Path, out: Path, *, durable: bool) -> float:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    began = time.perf_counter()
    for path in sorted(raw.glob("*.hdf5")):
        shutil.copyfile(path, out / path.name)
        if durable:
            with (out / path.name).open("rb+") as file:
                os.fsync(file.fileno())
    return time.perf_counter() - began


def _checks(raw: Path) -> float:
    """Seconds in which every JPEG is checked on all cores, reading them left out."""
    import h5py

    from knonik_assets.episodes.video_sinks import jpeg_size
    from knonik_assets.sources.base import EncodedImage

    seconds = 0.0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for path in sorted(raw.glob("*.hdf5")):
            with h5py.File(path) as file:
                rows = [EncodedImage(row.tobytes(), "jpeg") for camera in file["cam"].values() for row in camera[:]]
            began = time.perf_counter()
            list(pool.map(lambda group: [jpeg_size(row, "row") for row in group], _tens(rows)))
            seconds += time.perf_counter() - began
    return seconds


def _pass_one(path: Path, out: Path) -> None:
    """What passing an episode's JPEGs takes at least: both digests, reading rows, a file a camera, and the disk."""
    import h5py

    out.mkdir(parents=True)
    with path.open("rb") as file:
        hashlib.file_digest(file, "sha256")
    with h5py.File(path) as episode:
        for name, camera in episode["cam"].items():
            target = out / f"{name}.mkv"
            with av.open(str(target), "w", format="matroska") as container:
                stream = container.add_mux_stream("mjpeg", rate=30, width=640, height=480)
                stream.time_base = Fraction(1, 1000)
                for start in range(0, len(camera), 16):
                    for index, row in enumerate(camera[start : start + 16], start):
                        packet = av.Packet(row.tobytes())
                        packet.stream, packet.time_base, packet.is_keyframe = stream, stream.time_base, True
                        packet.pts = packet.dts = round(index * 1000 / 30)
                        container.mux(packet)
            with target.open("rb") as file:
                hashlib.file_digest(file, "sha256")
                os.fsync(file.fileno())


def _ready(seconds: float) -> None:
    import h5py  # noqa: F401 - what takes long

    time.sleep(seconds)


def _bare_pass(raw: Path, out: Path) -> float:
    """Seconds of `_pass_one` over all episodes, the processes' start left out."""
    shutil.rmtree(out, ignore_errors=True)
    paths = sorted(raw.glob("*.hdf5"))
    cores = os.cpu_count() or 1
    with ProcessPoolExecutor(cores, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_ready, [0.5] * cores))
        began = time.perf_counter()
        list(pool.map(_pass_one, paths, [out / path.stem for path in paths]))
        return time.perf_counter() - began


def _tens(rows: list[Any]) -> list[list[Any]]:
    return [rows[start : start + 10] for start in range(0, len(rows), 10)]


def run() -> list[Ratio]:
    """Encoding, then JPEGs that pass; or what ``KNONIK_INGESTING`` names of ``encoding,passing``."""
    parts = {"encoding": _encoding, "passing": _passing}
    named = os.environ.get("KNONIK_INGESTING", "encoding,passing").split(",")
    with TemporaryDirectory(dir=os.environ.get("KNONIK_BENCH_FOLDER")) as folder:
        return [row for name in named for row in parts[name](Path(folder))]


def _encoding(root: Path) -> list[Ratio]:
    raw, count = _raw(root / "raw", FRAMES, CLIPS, jpeg=False)
    streams = _streams(raw)
    recorded = sorted(raw.iterdir())
    for number in range(len(recorded), EPISODES):
        (raw / f"episode_{number}.hdf5").hardlink_to(recorded[number % len(recorded)])
    count = count * EPISODES // len(recorded)
    (root / "bare").mkdir()
    rows = []
    for name, preset in PRESETS.items():
        ours, rgb, yuv = alternate(
            1,
            lambda preset=preset: _ingest(raw, root / "out", preset),
            lambda preset=preset: _bare(streams, root / "bare", preset, converted=False),
            lambda preset=preset: _bare(streams, root / "bare", preset, converted=True),
        )
        detail = f"{count / ours:.0f} frames/s; {count} frames of 480x640"
        rows.append(Ratio(f"ingest, {name}", "bare PyAV loop from RGB", rgb / ours, ">= 0.80", detail))
        rows.append(Ratio(f"ingest, {name}", "bare encoder, YUV ready", yuv / ours, "reported", ""))
    shutil.rmtree(root / "raw")
    return rows


def _passing(root: Path) -> list[Ratio]:
    raw, count = _raw(root / "jpegs", None, None, jpeg=True)
    rows = _passed(root, raw, count, "each once")
    recorded = sorted(raw.iterdir())
    for number in range(len(recorded), MORE * len(recorded)):
        (raw / f"episode_{number}.hdf5").hardlink_to(recorded[number % len(recorded)])
    return rows + _passed(root, raw, MORE * count, f"each {MORE} times")


def _passed(root: Path, raw: Path, count: int, amount: str) -> list[Ratio]:
    size = sum(path.stat().st_size for path in raw.glob("*.hdf5"))
    ours, durable, loose, checks, bare = alternate(
        3,
        lambda: _ingest(raw, root / "out", {"rgb": {"codec": "jpeg"}}),
        lambda: _copy(raw, root / "copy", durable=True),
        lambda: _copy(raw, root / "copy", durable=False),
        lambda: _checks(raw),
        lambda: _bare_pass(raw, root / "bare_pass"),
    )
    what = f"ingest, JPEGs pass, {amount}"
    detail = f"{size / ours / 1e6:.0f} MB/s, {count / ours:.0f} frames/s; {size / 1e6:.0f} MB"
    return [
        Ratio(what, "copy with fsync", durable / ours, ">= 0.50", detail),
        Ratio(what, "copy without fsync", loose / ours, "reported", f"{size / loose / 1e6:.0f} MB/s"),
        Ratio(what, "their checks alone", checks / ours, "reported", f"{size / checks / 1e6:.0f} MB/s"),
        Ratio(
            "their checks alone", "copy with fsync", durable / checks, "reported", f"{size / durable / 1e6:.0f} MB/s"
        ),
        Ratio("bare loop, no checks", "copy with fsync", durable / bare, "reported", f"{size / bare / 1e6:.0f} MB/s"),
    ]
