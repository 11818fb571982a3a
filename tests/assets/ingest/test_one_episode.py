"""One episode's work on a source that lives in memory: truncation, threads, copies, nothing left behind."""

import threading

import numpy as np
import pytest

from knonik_assets.configs.load import load_ingest_config
from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.ingesting import one_episode
from knonik_assets.ingesting.one_episode import EpisodeTask, ingest_episode
from knonik_assets.sources.base import EpisodeFacts, EpisodeRef, StreamSpec
from knonik_loader.errors import EpisodeError, SourceError, StorageError
from tests.support.stamps import episode_arrays, read_stamp

ARRAYS = episode_arrays(3, 12)


class MemorySource:
    """A `Source` of one episode; itself the open episode too."""

    format = "memory"

    def __init__(self, cameras=2, frames=12, declared=None, times=None):
        self.warnings = []
        length = frames if declared is None else declared
        self.frames_there = frames
        self.streams = [
            *(StreamSpec("rgb", f"cam_{c}", f"images/cam_{c}", length, (96, 112, 3), 30.0) for c in range(cameras)),
            StreamSpec("depth", "front", "depth", length, (4, 6)),
            StreamSpec("numeric", "action", "action", length, (4,), channel_names=("a", "b", "c", "d"), role="action"),
        ]
        self.facts = EpisodeFacts(timestamps=times, warnings=["as it was found"], attributes={"source_bag": "b.bag"})
        self.closed = []
        self.together = threading.Barrier(1)

    def episodes(self):
        return [EpisodeRef("one")]

    def fingerprint(self, ref, cache):
        return "f" * 64

    def open(self, ref):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closed.append("episode")

    def frames(self, spec):
        self.together.wait(20)  # fails unless so many streams are being read at once
        try:
            for t in range(min(self.frames_there, spec.length)):
                if spec.kind == "depth":
                    yield np.full((4, 6), 0.5 + t / 1000, np.float32)
                else:
                    yield ARRAYS[spec.name][t]
        finally:
            self.closed.append(spec.name)

    def numeric(self, spec):
        return ARRAYS[spec.name][: spec.length]

    def stream_times(self, spec):
        return None

    def packets(self, spec):
        return None


@pytest.fixture
def work(tmp_path, monkeypatch):
    def start(source, threads=1, **config):
        settings = {"dir_type": "hdf5", "preset": {"rgb": {"codec": "jpeg"}}, **config}
        monkeypatch.setattr(one_episode, "open_source", lambda config, root: source)
        return ingest_episode(
            EpisodeTask(
                config=load_ingest_config(settings),
                root="/data/kitchen",
                out=str(tmp_path),
                ref=EpisodeRef("one"),
                episode_id="episode_000000",
                config_fingerprint="c" * 64,
                fingerprint=None,
                threads=threads,
            )
        ).outcome

    return start


def nothing_is_left(out):
    return not [path for path in out.rglob("*") if path.is_file()]


@pytest.mark.parametrize("threads", [1, 3])
def test_everything_arrives_whatever_the_threads(work, tmp_path, threads):
    source = MemorySource(times=np.arange(12) / 30)
    source.together = threading.Barrier(threads)
    outcome = work(source, threads)
    assert (outcome.status, outcome.frames, outcome.warnings) == ("written", 12, ["as it was found"])
    reader = EpisodeReader(tmp_path / "episode_000000")
    assert reader.verify() == []
    for camera in range(2):
        assert [read_stamp(frame) for frame in reader.rgb(f"cam_{camera}")] == [(camera, 3, t) for t in range(12)]
    assert [int(frame[0, 0]) for frame in reader.depth("front")] == [500 + t for t in range(12)]
    meta = reader.metadata
    assert (meta.source_id, meta.source_format, meta.source_bag, meta.dataset) == ("one", "memory", "b.bag", "kitchen")
    assert (meta.stream_roles, meta.channel_names) == ({"action": "action"}, {"action": ["a", "b", "c", "d"]})
    on_disk = sum(path.stat().st_size for path in (tmp_path / "episode_000000").rglob("*") if path.is_file())
    assert outcome.bytes == on_disk
    assert not list((tmp_path / ".knonik" / "progress").iterdir())


@pytest.mark.parametrize("threads", [1, 3])
def test_a_stream_shorter_than_declared_fails_by_name_and_leaves_nothing(work, tmp_path, threads):
    source = MemorySource(frames=7, declared=12)
    with pytest.raises(EpisodeError, match=r"(images/cam_\d|depth) ends after 7 of its 12"):
        work(source, threads)
    assert nothing_is_left(tmp_path)
    assert "episode" in source.closed


def test_trimmed_streams_are_let_go_of(work, tmp_path):
    source = MemorySource(times=np.arange(5) / 30)
    outcome = work(source)
    assert outcome.frames == 5
    assert any("trimmed to the 5 frames of timestamps" in warning for warning in outcome.warnings)
    assert {"cam_0", "cam_1", "front"} <= set(source.closed)
    assert EpisodeReader(tmp_path / "episode_000000").metadata.trimmed["rgb_cam_0"] == 7


@pytest.mark.parametrize("source", [MemorySource(declared=0), MemorySource(times=np.empty(0))])
def test_an_episode_without_frames_is_empty_with_a_reason(work, tmp_path, source):
    outcome = work(source)
    assert (outcome.status, outcome.frames) == ("empty", 0)
    assert "no frames" in outcome.reason
    assert nothing_is_left(tmp_path)


def test_the_writers_own_metadata_cannot_be_overwritten(work, tmp_path):
    source = MemorySource()
    source.facts.attributes["episode_length"] = 99
    with pytest.raises(Exception, match="episode_length"):
        work(source)
    assert nothing_is_left(tmp_path)


@pytest.mark.parametrize("threads", [1, 3])
def test_troubles_of_the_system_are_told_apart(work, tmp_path, monkeypatch, threads):
    source = MemorySource()

    def refuse(error):
        def frames(spec):
            raise error
            yield

        monkeypatch.setattr(source, "frames", frames)

    refuse(OSError(28, "No space left on device"))
    with pytest.raises(StorageError, match="No space left"):
        work(source, threads)
    refuse(PermissionError(13, "Permission denied", "/data/kitchen/one.h5"))
    with pytest.raises(EpisodeError, match=r"/data/kitchen/one\.h5: Permission denied"):
        work(source, threads)
    refuse(SourceError("the layout names nothing"))
    with pytest.raises(SourceError):
        work(source, threads)
    assert nothing_is_left(tmp_path)


def test_one_camera_that_cannot_be_copied_is_encoded_and_says_so(work, tmp_path):
    outcome = work(MemorySource(), preset={"rgb": {"codec": "copy"}})
    assert sum("encoded as vp9" in warning for warning in outcome.warnings) == 2
    assert EpisodeReader(tmp_path / "episode_000000").rgb_info("cam_0").params["copied"] is False
