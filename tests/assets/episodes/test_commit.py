"""An episode is in place whole or not at all, and its files can be checked."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading

import numpy as np
import pytest

from knonik_assets.configs.presets import Preset
from knonik_assets.episodes import storing, video_sinks
from knonik_assets.episodes.reader import EpisodeReader, list_episodes
from knonik_assets.episodes.storing import recover
from knonik_assets.sources.base import Language
from knonik_loader.errors import ConfigError, EpisodeError, StorageError
from tests.assets.episodes.support import FACTS, open_writer, write_stamped
from tests.support.stamps import episode_arrays, read_stamp

EPISODE = "episode_000000"


def write_all(out, codec="vp9", episode=1, **more):
    """An episode with a stream of every kind."""
    arrays = episode_arrays(episode, 7, 1)
    chosen = Preset.model_validate({"rgb": {"codec": codec, "quality": 30}})
    with open_writer(out, preset=chosen, **more) as writer:
        writer.add_rgb("cam")
        writer.add_depth("cam")
        writer.add_numeric("state", 4, role="state")
        for index, image in enumerate(arrays["cam_0"]):
            writer.rgb("cam", image)
            writer.depth("cam", image[..., 0].astype(np.float32) / 100 + index)
        writer.numeric("state", arrays["state"])
        writer.language(Language("go", ("move",), ((0.0, 0.1, "x"),)))
        writer.clock(arrays["timestamps"], "source")
        return writer.commit(trimmed={"rgb_cam": 2})


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def frame_ids(out):
    return [read_stamp(image) for image in EpisodeReader(out / EPISODE).rgb("cam")]


@pytest.mark.parametrize("codec", ["vp9", "av1", "h264", "jpeg"])
def test_the_same_input_gives_the_same_bytes_in_any_process(tmp_path, codec):
    write_all(tmp_path / "a", codec)
    write_all(tmp_path / "b", codec)
    program = (
        "import sys, pathlib; from tests.assets.episodes.test_commit import write_all;"
        "write_all(pathlib.Path(sys.argv[1]), sys.argv[2])"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "c"), codec], check=True)
    first = contents(tmp_path / "a")
    assert len(first) > 10
    assert contents(tmp_path / "b") == first
    assert contents(tmp_path / "c") == first


def test_metadata_says_what_is_there(tmp_path):
    extra = {
        "camera_info": {"cam": {"K": np.eye(2), "D": [float("nan"), 1.0]}},
        "ros_skipped": {"/tf": 3},
        "operator": "Zoë",
        "width": np.int64(4),
    }
    metadata = write_all(tmp_path, extra=extra, jpeg_channel_order="bgr", orientation="rotate_180")
    folder = tmp_path / EPISODE
    raw = json.loads((folder / "metadata.json").read_text("utf-8"))
    assert EpisodeReader(folder).metadata == metadata
    assert {key: raw[key] for key in FACTS} == FACTS
    assert (raw["episode_length"], raw["fps"], raw["trimmed"]) == (7, 30.0, {"rgb_cam": 2})
    assert (raw["jpeg_channel_order"], raw["orientation"]) == ("bgr", "rotate_180")
    assert raw["camera_info"] == {"cam": {"K": [[1.0, 0.0], [0.0, 1.0]], "D": [None, 1.0]}}
    assert (raw["operator"], raw["width"], raw["ros_skipped"]) == ("Zoë", 4, {"/tf": 3})
    assert (raw["rgb_streams"], raw["depth_streams"], raw["numeric_streams"]) == (["cam"], ["cam"], ["state"])
    assert set(raw["stream_params"]) == {"rgb_cam", "depth_cam", "state"}
    assert raw["stream_params"]["rgb_cam"]["width"] == 112
    found = contents(folder)
    del found["metadata.json"]
    assert raw["files"] == {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in found.items()
    }
    assert list(raw["files"]) == sorted(raw["files"])
    assert {"rgb_cam.webm", "depth_cam.hdf5", "state/.zarray", "state_time/0", "frame_time/0"} <= set(found)


def test_verify_finds_a_flipped_byte_a_lost_and_a_short_file(tmp_path):
    write_all(tmp_path)
    reader = EpisodeReader(tmp_path / EPISODE)
    assert reader.verify() == []
    for name, damage, wanted in (
        ("rgb_cam.webm", lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:], "differs from its checksum"),
        ("state/0.0", lambda data: data[:-1], "bytes instead of"),
        ("depth_cam.hdf5", None, "is missing"),
    ):
        path = tmp_path / EPISODE / name
        before = path.read_bytes()
        path.unlink() if damage is None else path.write_bytes(damage(before))
        (problem,) = reader.verify()
        assert re.search(f"{re.escape(name)} .*{wanted}", problem)
        path.write_bytes(before)
    assert reader.verify() == []


def test_nothing_appears_before_commit_nor_after_a_failure(tmp_path):
    image = np.zeros((16, 16, 3), np.uint8)

    def interrupted():
        with open_writer(tmp_path) as writer:
            writer.add_rgb("cam")
            writer.rgb("cam", image)
            assert list_episodes(tmp_path) == []
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        interrupted()
    with open_writer(tmp_path) as writer:
        writer.add_rgb("cam")
        writer.rgb("cam", image)
    with open_writer(tmp_path) as writer:
        writer.add_rgb("cam")
        with pytest.raises(EpisodeError, match="has no frames"):
            writer.commit()
    with open_writer(tmp_path) as writer, pytest.raises(EpisodeError, match="has no streams"):
        writer.commit()
    assert list_episodes(tmp_path) == []
    assert list((tmp_path / ".knonik" / "tmp").iterdir()) == []


def test_streams_of_different_length_are_named(tmp_path):
    with open_writer(tmp_path) as writer:
        writer.add_rgb("a")
        writer.add_depth("b")
        writer.add_numeric("state", 1)
        for _ in range(2):
            writer.rgb("a", np.zeros((16, 16, 3), np.uint8))
        writer.depth("b", np.ones((3, 3)))
        writer.numeric("state", np.zeros((3, 1)))
        writer.clock(np.arange(4.0), "source")
        with pytest.raises(EpisodeError, match="rgb_a: 2, depth_b: 1, state: 3, frame_time: 4"):
            writer.commit()
    assert list_episodes(tmp_path) == []


def test_a_lost_frame_is_noticed_by_reading_back(tmp_path, monkeypatch):
    class Lossy:
        """A container that loses one packet, as a full encoder queue or a full disk would."""

        def __init__(self, container):
            self.container, self.muxed = container, 0

        def __getattr__(self, name):
            return getattr(self.container, name)

        def mux(self, packets):
            self.muxed += 1
            if self.muxed != 3:
                self.container.mux(packets)

    real = video_sinks.av.open
    monkeypatch.setattr(
        video_sinks.av,
        "open",
        lambda path, mode="r", **kw: Lossy(real(path, mode, **kw)) if mode == "w" else real(path),
    )
    with pytest.raises(EpisodeError, match=r"'rgb_cam'.*7 frames went in, but rgb_cam.mkv holds 6"):
        write_all(tmp_path, "jpeg")
    assert list_episodes(tmp_path) == []


def test_an_older_episode_is_replaced_whole(tmp_path, monkeypatch):
    for two_steps in (False, True):
        if two_steps:
            monkeypatch.setattr(storing, "_exchange", lambda *_: False)
        out = tmp_path / str(two_steps)
        write_all(out, "jpeg", episode=1)
        (out / EPISODE / "leftover").write_text("of the old one")
        write_all(out, "vp9", episode=2)
        assert frame_ids(out) == [(0, 2, index) for index in range(7)]
        assert not (out / EPISODE / "rgb_cam.mkv").exists()
        assert not (out / EPISODE / "leftover").exists()
        assert EpisodeReader(out / EPISODE).verify() == []
        assert list((out / ".knonik" / "tmp").iterdir()) == []
        assert [path.name for path in out.iterdir() if path.name != ".knonik"] == [EPISODE]


CRASHES = """
import os, pathlib, signal, sys
from knonik_assets.episodes import storing
from knonik_assets.episodes.reader import EpisodeReader
from tests.assets.episodes.test_commit import EPISODE, frame_ids, write_all

out = pathlib.Path(sys.argv[1])
if sys.argv[2] == "two":
    storing._exchange = lambda *_: False
seen = step = 0

def counting(event, args):
    # Every change of folders while an episode is put in place is a moment to die at.
    global seen
    if event in {"os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "os.mkdir", "ctypes.dlsym"}:
        seen += 1
        if seen == step:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(counting)
write_all(out, "jpeg", episode=1)
while True:
    step += 1
    child = os.fork()
    if child == 0:
        seen = 0
        write_all(out, "jpeg", episode=2)
        os._exit(0)
    step, kept = 0, step
    status = os.waitpid(child, 0)[1]
    storing.recover(out)
    assert EpisodeReader(out / EPISODE).verify() == []
    assert not list((out / ".knonik" / "tmp").iterdir())
    episodes = {ident[1] for ident in frame_ids(out)}
    print(kept, *episodes, status == signal.SIGKILL)
    if status != signal.SIGKILL:
        break
    if episodes == {2}:
        write_all(out, "jpeg", episode=1)
    step = kept
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("way", ["one", "two"])
def test_a_crash_at_any_moment_leaves_the_old_or_the_new_episode(tmp_path, way):
    done = subprocess.run(
        [sys.executable, "-c", CRASHES, str(tmp_path / "out"), way], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    episodes = [line[1] for line in lines]
    assert len(lines) > 8
    assert episodes == sorted(episodes)  # before the exchange the old one, after it the new one
    assert (episodes[0], episodes[-1]) == ("1", "2")
    assert [line[2] for line in lines] == ["True"] * (len(lines) - 1) + ["False"]


def test_recover_puts_an_episode_back_that_a_crash_caught_between_two_renames(tmp_path):
    write_all(tmp_path)
    aside = tmp_path / ".knonik" / "tmp" / f"{EPISODE}.replaced"
    (tmp_path / EPISODE).rename(aside)
    (aside.parent / "stray").write_text("")
    assert recover(tmp_path) == [EPISODE]
    assert frame_ids(tmp_path)
    assert list(aside.parent.iterdir()) == []
    assert recover(tmp_path / "new") == []


def test_recover_removes_what_a_crash_left_of_the_state(tmp_path):
    write_all(tmp_path)
    state = tmp_path / ".knonik"
    left = [state / f".{name}.json.4711.partial" for name in ("fingerprints", "numbers")]
    others = [state / ".notes.json.4711.partial", state / "fingerprints.json", tmp_path / ".config.json.4711.partial"]
    for path in (*left, *others):
        path.write_text("{}")
    recover(tmp_path)
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in others), "somebody else may be writing them"


def test_streams_may_be_fed_from_different_threads(tmp_path):
    arrays = episode_arrays(3, 15, 4)
    failures = []
    with open_writer(tmp_path) as writer:
        for camera in range(4):
            writer.add_rgb(str(camera))
        writer.add_depth("d")

        def feed(camera):
            try:
                for image in arrays[f"cam_{camera}"]:
                    writer.rgb(str(camera), image)
                    if camera == 0:
                        writer.depth("d", image[..., 0].astype(np.float32))
            except Exception as error:  # pragma: no cover - reported below
                failures.append(error)

        threads = [threading.Thread(target=feed, args=(camera,)) for camera in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        writer.commit()
    assert failures == []
    reader = EpisodeReader(tmp_path / EPISODE)
    for camera in range(4):
        assert [read_stamp(image) for image in reader.rgb(str(camera))] == [(camera, 3, index) for index in range(15)]
    write_stamped(tmp_path / "serial", 3, 15, cameras=1)
    assert (tmp_path / "serial" / EPISODE / "rgb_cam_0.webm").read_bytes() == (
        tmp_path / EPISODE / "rgb_0.webm"
    ).read_bytes()


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (np.zeros((16, 18, 3), np.uint8), "18x16.*16x16"),
        (np.zeros((16, 16, 3), np.float32), "float32"),
        (np.zeros((16, 16), np.uint8), r"uint8 \(16, 16\)"),
        (np.zeros((16, 16, 4), np.uint8), r"\(16, 16, 4\)"),
        (np.zeros((0, 16, 3), np.uint8), "empty"),
        ([[[0, 0, 0]]], "a list"),
        (None, "a NoneType"),
    ],
)
def test_a_wrong_frame_is_refused_by_name_and_the_next_one_taken(tmp_path, frame, message):
    good = np.zeros((16, 16, 3), np.uint8)
    with open_writer(tmp_path) as writer:
        writer.add_rgb("cam")
        writer.rgb("cam", good)
        with pytest.raises(EpisodeError, match=f"'rgb_cam', frame 1.*{message}"):
            writer.rgb("cam", frame)
        writer.rgb("cam", good)
        assert writer.commit().episode_length == 2


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "ä", "a b", "x" * 129, "a\n"])
def test_names_that_cannot_stand_on_disk_are_refused(tmp_path, name):
    with open_writer(tmp_path) as writer:
        for add in (writer.add_rgb, writer.add_depth, lambda given: writer.add_numeric(given, 1)):
            with pytest.raises(EpisodeError, match="not usable"):
                add(name)
    with pytest.raises(EpisodeError, match="episode name"):
        open_writer(tmp_path, name)
    assert [path.name for path in tmp_path.iterdir()] == [".knonik"]


def test_names_that_collide_are_refused(tmp_path):
    with open_writer(tmp_path) as writer:
        writer.add_rgb("cam")
        writer.add_depth("cam")
        writer.add_numeric("state", 2, role="state")
        for name in ("frame_time", "annotations", "metadata.json", "rgb_other.webm"):
            with pytest.raises(EpisodeError, match="a name with a meaning here"):
                writer.add_numeric(name, 1)
        for name in ("state", "state_time", "rgb_cam", "depth_cam"):
            with pytest.raises(EpisodeError, match=f"'{name}' collides"):
                writer.add_numeric(name, 1)
        with pytest.raises(EpisodeError, match="'rgb_cam' collides"):
            writer.add_rgb("cam")
        writer.add_numeric("x_time", 1)
        with pytest.raises(EpisodeError, match="'x' collides"):
            writer.add_numeric("x", 1)
        with pytest.raises(EpisodeError, match="'state' and 'other' claim to be the state"):
            writer.add_numeric("other", 2, role="state")
        with pytest.raises(EpisodeError, match="1 channel names for 2"):
            writer.add_numeric("other", 2, channel_names=["a"])
        with pytest.raises(EpisodeError, match="at least 1"):
            writer.add_numeric("other", 0)
        with pytest.raises(EpisodeError, match=r"no colour stream 'came' .*registered: cam"):
            writer.rgb("came", np.zeros((2, 2, 3), np.uint8))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"fps": 0}, "fps of the episode"),
        ({"fps": float("nan")}, "fps of the episode"),
        ({"extra": {"files": {}}}, "'files' is filled in"),
        ({"extra": {"x": object()}}, "'x' cannot be kept in JSON"),
    ],
)
def test_calls_that_cannot_be_meant(tmp_path, more, message):
    with pytest.raises(ConfigError, match=message):
        open_writer(tmp_path, **more)
    assert list(tmp_path.iterdir()) == []


def test_after_commit_or_abort_nothing_is_taken(tmp_path):
    with open_writer(tmp_path) as writer:
        writer.add_numeric("state", 1)
        writer.numeric("state", np.zeros((1, 1)))
        writer.commit()
        for call in (
            lambda: writer.numeric("state", np.zeros((1, 1))),
            lambda: writer.add_rgb("cam"),
            lambda: writer.commit(),
        ):
            with pytest.raises(EpisodeError, match="already committed"):
                call()
        writer.abort()
    assert EpisodeReader(tmp_path / EPISODE).length == 1


def test_reading_what_is_not_there(tmp_path):
    write_all(tmp_path)
    reader = EpisodeReader(tmp_path / EPISODE)
    assert "7 frames of cam, cam, state" in repr(reader)
    for call, message in (
        (lambda: reader.rgb("came"), "no colour stream 'came'; it has cam"),
        (lambda: reader.depth("x"), "no depth stream"),
        (lambda: reader.numeric("x"), "no numeric stream"),
        (lambda: reader.rgb("cam", 3, 9), "frames 3 to 9 are not within the 7"),
        (lambda: reader.rgb("cam", -1), "not within"),
        (lambda: reader.depth("cam", 5, 4), "not within"),
        (lambda: EpisodeReader(tmp_path), "no ingested episode"),
        (lambda: list_episodes(tmp_path / "none"), "no directory of ingested episodes"),
    ):
        with pytest.raises(EpisodeError, match=message):
            call()
    (tmp_path / EPISODE / "metadata.json").write_text('{"dataset": 1}')
    with pytest.raises(EpisodeError, match=r"metadata\.json is no ingested episode's, or damaged"):
        EpisodeReader(tmp_path / EPISODE)


def test_damaged_video_and_arrays_are_episode_errors(tmp_path):
    write_all(tmp_path)
    folder = tmp_path / EPISODE
    video, rows = folder / "rgb_cam.webm", folder / "state" / "0.0"
    data = video.read_bytes()
    for damaged in (data[: len(data) // 2], b"", data[:40], b"\0" * 999):
        video.write_bytes(damaged)
        with pytest.raises(EpisodeError, match=r"rgb_cam\.webm"):
            list(EpisodeReader(folder).rgb("cam"))
    rows.write_bytes(b"\0" * 30)
    with pytest.raises(EpisodeError, match="state is missing or damaged"):
        EpisodeReader(folder).numeric("state")
    video.unlink()
    with pytest.raises((EpisodeError, StorageError), match=r"rgb_cam\.webm"):
        list(EpisodeReader(folder).rgb("cam"))


def test_episodes_come_in_natural_order(tmp_path):
    for name in ("episode_10", "episode_9", "episode_000002"):
        write_all(tmp_path)
        (tmp_path / EPISODE).rename(tmp_path / name)
    (tmp_path / "episode_3").mkdir()
    (tmp_path / "config.json").write_text("{}")
    assert [path.name for path in list_episodes(tmp_path)] == ["episode_000002", "episode_9", "episode_10"]


def test_files_have_ordinary_permissions(tmp_path):
    write_all(tmp_path)
    probe = tmp_path / "probe"
    probe.mkdir()
    assert (tmp_path / EPISODE).stat().st_mode == probe.stat().st_mode
    (tmp_path / "file").write_text("")
    for path in (tmp_path / EPISODE).glob("*.*"):
        assert path.stat().st_mode == (tmp_path / "file").stat().st_mode


def test_an_output_that_is_a_file_is_a_storage_error(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(StorageError, match=r"cannot create .*out.*Not a directory"):
        open_writer(tmp_path / "out")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 400 KB; needs the right to mount."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("cannot mount a small file system here")
    yield folder
    busy = subprocess.run(["umount", str(folder)], capture_output=True, check=False).returncode
    if busy:  # never leave a mount behind, which later runs could not clean up
        subprocess.run(["umount", "-l", str(folder)], check=True)
    assert not busy, "something still holds a file open on the disk"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mounting needs root")
@pytest.mark.parametrize("kind", ["vp9", "h264", "jpeg", "depth", "numeric"])
def test_a_full_disk_is_a_storage_error_that_names_the_path(small_disk, kind):
    with pytest.raises(StorageError, match=rf"{re.escape(str(small_disk))}.*No space left on device"):
        write_noise(small_disk, kind)
    assert list_episodes(small_disk) == []
    assert list((small_disk / ".knonik" / "tmp").iterdir()) == []


def write_noise(out, kind):
    """More than the small disk holds, by a stream of one kind."""
    rng = np.random.default_rng(0)
    chosen = Preset() if kind in ("depth", "numeric") else Preset.model_validate({"rgb": {"codec": kind, "quality": 9}})
    with open_writer(out, preset=chosen) as writer:
        if kind == "depth":
            writer.add_depth("cam")
        elif kind == "numeric":
            writer.add_numeric("state", 64)
        else:
            writer.add_rgb("cam")
        for _ in range(300 if kind == "jpeg" else 80):
            if kind == "depth":
                writer.depth("cam", rng.uniform(0, 60, (64, 64)))
            elif kind == "numeric":
                writer.numeric("state", rng.normal(size=(64, 64)))
            else:
                writer.rgb("cam", rng.integers(0, 255, (96, 96, 3)).astype(np.uint8))
        writer.commit()
