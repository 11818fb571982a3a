"""JPEGs checked ahead of writing: frames and errors keep their order, whatever is slow or damaged."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import h5py
import numpy as np
import pytest

from knonik_assets.episodes.video_sinks import CheckedJpeg
from knonik_assets.ingest import run
from knonik_assets.ingesting.ahead import checked_ahead
from knonik_assets.sources.base import EncodedImage
from knonik_loader.errors import EpisodeError, SourceError
from tests.assets.sources.support import jpeg
from tests.support.stamps import episode_arrays

PICTURES = [jpeg(picture) for picture in episode_arrays(0, 40)["cam_0"]]


def damaged(data):
    return data[: len(data) // 2] + data[-2:]


def source(rows, error=None):
    for row in rows:
        yield EncodedImage(row, "jpeg")
    if error is not None:
        raise error


def taken(frames, threads=2):
    found = []
    with ThreadPoolExecutor(threads) as pool:
        try:
            for frame in checked_ahead(frames, "rgb_top", pool, threads):
                found.append(frame)
        except (EpisodeError, SourceError, OSError) as error:
            return found, error
    return found, None


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 40])
def test_frames_keep_their_order(length):
    found, error = taken(source(PICTURES[:length]))
    assert error is None
    assert [frame.data for frame in found] == PICTURES[:length]
    assert all(isinstance(frame, CheckedJpeg) and frame.size == (96, 112) for frame in found)


@pytest.mark.parametrize("place", [0, 7, 8, 13, 39])
def test_a_damaged_picture_is_told_behind_all_before_it(place):
    rows = [damaged(row) if index >= place else row for index, row in enumerate(PICTURES)]
    found, error = taken(source(rows, EpisodeError("the source ends")))
    assert [frame.data for frame in found] == PICTURES[:place]
    assert f"stream 'rgb_top', frame {place}: damaged JPEG" in str(error)


@pytest.mark.parametrize("failure", [EpisodeError("gone"), SourceError("gone"), OSError("gone")])
def test_what_the_source_raises_comes_behind_its_frames(failure):
    found, error = taken(source(PICTURES[:11], failure))
    assert [frame.data for frame in found] == PICTURES[:11]
    assert error is failure


def test_arrays_and_other_pictures_pass_as_they_are():
    array, other = np.zeros((8, 8, 3), np.uint8), EncodedImage(b"no picture", "png")
    assert taken(iter([array, other]))[0] == [array, other]


def test_few_frames_are_held():
    read = 0

    def endless():
        nonlocal read
        for index in count():
            read = index + 1
            yield EncodedImage(PICTURES[index % 40], "jpeg")

    with ThreadPoolExecutor(2) as pool:
        frames = checked_ahead(endless(), "rgb_top", pool, 2)
        for given in range(1, 200):
            next(frames)
            assert read - given < 2 * 2 * 8
        frames.close()


def test_checks_run_beside_the_thread_that_writes(monkeypatch):
    import knonik_assets.ingesting.ahead as ahead

    names = set()

    def noted(image, where, real=ahead.checked_jpeg):
        names.add(threading.current_thread().name)
        return real(image, where)

    monkeypatch.setattr(ahead, "checked_jpeg", noted)
    taken(source(PICTURES))
    assert names
    assert threading.current_thread().name not in names


def recording(path, rows):
    path.mkdir()
    with h5py.File(path / "episode_0.hdf5", "w") as file:
        file["action"] = np.zeros((len(rows), 2), np.float32)
        for name in ("top", "wrist"):
            target = file.create_dataset(f"cam/{name}", (len(rows),), h5py.vlen_dtype(np.uint8))
            for place, row in enumerate(rows):
                target[place] = np.frombuffer(row, np.uint8)
    return path


def ingested(raw, out, workers):
    preset = {"rgb": {"codec": "jpeg", "workers": workers}}
    return run({"dir_type": "episodic", "data_type": "hdf5", "fps": 30, "preset": preset}, raw, out, engine="inline")


def test_an_episode_is_the_same_however_many_check_it(tmp_path):
    raw = recording(tmp_path / "raw", PICTURES)
    for workers in (1, 3):
        assert ingested(raw, tmp_path / str(workers), workers).ok
    (one,), (three,) = (sorted((tmp_path / workers).glob("*/metadata.json")) for workers in ("1", "3"))
    assert one.read_bytes() == three.read_bytes()
    names = [path.relative_to(one.parent) for path in sorted(one.parent.rglob("*")) if path.is_file()]
    assert sum(name.suffix == ".mkv" for name in names) == 2
    for name in names:
        assert (one.parent / name).read_bytes() == (three.parent / name).read_bytes()


@pytest.mark.parametrize("workers", [1, 3])
def test_the_first_damaged_picture_fails_the_episode(tmp_path, workers):
    rows = [damaged(row) if index in (21, 30) else row for index, row in enumerate(PICTURES)]
    with pytest.raises(EpisodeError, match=r"stream 'rgb_(top|wrist)', frame 21: damaged JPEG"):
        ingested(recording(tmp_path / "raw", rows), tmp_path / "out", workers)
    assert not list((tmp_path / "out").glob("*/metadata.json"))
