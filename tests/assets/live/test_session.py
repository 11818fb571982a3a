"""Frames pushed from Python: the right frame, time, camera and episode, whatever the producer does."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

from knonik.ingest import live_session, run
from knonik_assets.episodes.reader import EpisodeReader
from knonik_loader.errors import ConfigError, EpisodeError, LoginRequired, StorageError
from tests.support.road import ingest_config, tree, write_raw
from tests.support.stamps import episode_arrays, read_stamp

ROOT = Path(__file__).resolve().parents[3]
JPEG = {"rgb": {"codec": "jpeg", "quality": 92}}


def push(session, arrays, t, cameras=2, timed=True):
    """Step t of a stamped episode, in one of several orders."""
    seconds = float(arrays["timestamps"][t]) if timed else None
    calls = [(session.rgb, f"cam_{c}", arrays[f"cam_{c}"][t]) for c in range(cameras)]
    calls += [(session.numeric, name, arrays[name][t]) for name in ("state", "action")]
    for call, name, value in calls[t % len(calls) :] + calls[: t % len(calls)]:
        call(name, value, timestamp=seconds)


def register(session, cameras=2, fps=30):
    for c in range(cameras):
        session.register_rgb(f"cam_{c}", fps=fps)
    session.register_numeric("state", dim=4, role="state", channel_names=["episode", "t", "sin", "cos"])
    session.register_numeric("action", dim=4, role="action")


def check_episode(path, arrays, frames, cameras=2, clock=None):
    reader = EpisodeReader(path)
    episode = int(arrays["state"][0, 0])
    assert reader.verify() == []
    assert reader.length == frames
    np.testing.assert_array_equal(reader.frame_time(), arrays["timestamps"][:frames] if clock is None else clock)
    for c in range(cameras):
        read = [read_stamp(frame) for frame in reader.rgb(f"cam_{c}")]
        assert read == [(c, episode, t) for t in range(frames)]
    for name in ("state", "action"):
        np.testing.assert_array_equal(reader.numeric(name), arrays[name][:frames])
    return reader


@pytest.mark.parametrize(
    "preset",
    [JPEG, "medium", "high", {"rgb": {"codec": "h264", "quality": 20, "workers": 1}}, {"rgb": {"codec": "av1"}}],
)
def test_every_frame_row_and_time_comes_back(tmp_path, preset):
    with live_session(output=tmp_path, preset=preset, metadata={"robot_type": "none", "dataset": "stamped"}) as session:
        register(session)
        for episode in range(2):
            arrays = episode_arrays(episode, 40 - episode)
            with session.episode(metadata={"task": f"number {episode}", "language_instruction": "lift it"}):
                for t in range(40 - episode):
                    push(session, arrays, t)
    for episode in range(2):
        reader = check_episode(tmp_path / f"episode_{episode:06d}", episode_arrays(episode, 40), 40 - episode)
        about = reader.metadata
        assert about.model_extra["task"] == f"number {episode}"
        assert (about.source_format, about.dataset, about.robot_type, about.fps) == ("live", "stamped", "none", 30)
        assert about.timestamps_origin == "source"
        assert reader.language().instruction == "lift it"
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["roles"] == {"action": "action", "state": "state"}
    assert config["streams"]["numeric"]["state"]["channel_names"] == ["episode", "t", "sin", "cos"]
    assert config["language"]["instructions"] == ["lift it"]
    assert [one.status for one in session.report.episodes] == ["written", "written"]
    assert session.report.frames == 79
    told = json.loads((tmp_path / "ingest_report.json").read_text())
    assert told["episodes"][0]["blocked_seconds"] == session.report.episodes[0].blocked_seconds
    assert not list((tmp_path / ".knonik" / "tmp").iterdir())


def test_without_timestamps_the_index_is_the_time(tmp_path):
    arrays = episode_arrays(0, 9)
    with live_session(tmp_path, JPEG) as session:
        register(session, fps=20)
        with session.episode():
            for t in range(9):
                push(session, arrays, t, timed=False)
    reader = check_episode(tmp_path / "episode_000000", arrays, 9, clock=np.arange(9) / 20)
    assert reader.metadata.timestamps_origin == "frame_index"
    assert json.loads((tmp_path / "config.json").read_text())["timestamps"]["origin"] == "frame_index"


def test_the_same_frames_give_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        with live_session(tmp_path / name, "medium", metadata={"dataset": "d"}) as session:
            register(session)
            arrays = episode_arrays(3, 12)
            with session.episode():
                for t in range(12):
                    push(session, arrays, t)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")


@pytest.mark.parametrize("codec", ["vp9", "h264", "av1", "jpeg"])
def test_unequal_streams_end_at_the_shortest(tmp_path, codec):
    arrays = episode_arrays(1, 17)
    depth = np.arange(17, dtype=np.float32)[:, None, None] / 8 + np.full((6, 7), 0.5, np.float32)
    lengths = {"cam_0": 17, "cam_1": 13, "state": 16, "action": 14}
    with live_session(tmp_path, {"rgb": {"codec": codec, "gop": 4}}) as session:
        register(session)
        session.register_depth("near", fps=30)
        with session.episode():
            for t in range(17):
                for name, length in lengths.items():
                    if t < length:
                        (session.rgb if name.startswith("cam") else session.numeric)(name, arrays[name][t], t / 30)
                session.depth("near", depth[t], t / 30)
    reader = check_episode(tmp_path / "episode_000000", arrays, 13)
    assert reader.metadata.trimmed == {"rgb_cam_0": 4, "depth_near": 4, "state": 3, "action": 1}
    np.testing.assert_array_equal(np.stack(list(reader.depth("near"))), np.rint(depth[:13] * 1000))
    assert any("trimmed to the 13 frames" in text for text in session.report.episodes[0].warnings)
    with live_session(tmp_path / "short", {"rgb": {"codec": codec, "gop": 4}}) as session:
        session.register_rgb("cam_0", fps=30)
        with session.episode():
            for t in range(13):
                session.rgb("cam_0", arrays["cam_0"][t], t / 30)
    never_longer = EpisodeReader(tmp_path / "short" / "episode_000000")
    for cut, other in zip(reader.rgb("cam_0"), never_longer.rgb("cam_0"), strict=True):
        np.testing.assert_array_equal(cut, other)
    params = [one.metadata.stream_params["rgb_cam_0"] for one in (reader, never_longer)]
    assert params[0] == params[1]


def test_depth_and_pictures_are_coerced_without_a_guess(tmp_path):
    rng = np.random.default_rng(4)
    colours = rng.integers(0, 256, (16, 24, 3)).astype(np.uint8)
    metres = rng.uniform(0.2, 3, (16, 24)).astype(np.float32)
    metres[0, :3] = np.nan, np.inf, -1
    forms = {
        "uint8": colours,
        "float": colours / np.float32(255),
        "alpha": np.concatenate([colours, colours[..., :1]], 2),
        "first": np.moveaxis(colours, 2, 0),
        "turned": colours[::-1][::-1],
        "int64": colours.astype(np.int64),
    }
    with live_session(tmp_path, JPEG) as session:
        for name in forms:
            session.register_rgb(name, fps=10)
        for name in ("m", "mm"):
            session.register_depth(name, fps=10)
        session.register_numeric("list", dim=2)
        session.register_numeric("scalar", dim=1)
        with session.episode():
            for name, frame in forms.items():
                session.rgb(name, frame)
            session.depth("m", metres.astype(np.float64))
            session.depth("mm", np.nan_to_num(np.rint(metres * 1000), nan=0, posinf=0).clip(0).astype(np.uint16))
            session.numeric("list", [1, 2.5])
            session.numeric("scalar", 7)
            colours[:] = 0  # the producer's buffers are its own again
            metres[:] = 9
    reader = EpisodeReader(tmp_path / "episode_000000")
    pictures = [next(reader.rgb(name)) for name in forms]
    assert pictures[0].any()
    for picture in pictures[1:]:
        np.testing.assert_array_equal(picture, pictures[0])
    np.testing.assert_array_equal(next(reader.depth("m")), next(reader.depth("mm")))
    assert next(reader.depth("m"))[0, :3].tolist() == [0, 0, 0]
    assert next(reader.depth("m")).max() > 200
    assert (reader.numeric("list").tolist(), reader.numeric("scalar").tolist()) == ([[1, 2.5]], [[7]])


def test_a_refused_frame_leaves_the_episode_as_it_was(tmp_path):
    arrays = episode_arrays(2, 6)
    picture = arrays["cam_0"][0]
    bad_rgb = [
        (picture[:-1], "keeps one shape"),
        (picture.astype(np.complex64), "complex64"),
        (picture.astype(str), "wanted a picture"),
        (picture / 0.9, "outside 0 to 1"),
        (picture.astype(np.int16) - 300, "outside 0 to 255"),
        (None, "object"),
        ([[1, 2], [3]], "no array"),
        (np.zeros((0, 5, 3), np.uint8), "wanted a picture"),
    ]
    with live_session(tmp_path, JPEG) as session:
        register(session)
        with pytest.raises(EpisodeError, match="no episode is open"):
            session.rgb("cam_0", picture)
        with session.episode():
            for t in range(6):
                push(session, arrays, t)
                for value, text in bad_rgb:
                    with pytest.raises(EpisodeError, match=text):
                        session.rgb("cam_0", value, 99.0)
                for value, text in [([1, 2], "4 numbers"), ("text", "4 numbers"), (np.zeros((1, 4)), "4 numbers")]:
                    with pytest.raises(EpisodeError, match=text):
                        session.numeric("state", value, 99.0)
                for seconds, text in [
                    (np.nan, "finite"),
                    (np.inf, "finite"),
                    ("1.0", "number of seconds"),
                    (True, "number of seconds"),
                    (t / 30 - 0.001, "backwards"),
                    (None, "or none"),
                ]:
                    with pytest.raises(EpisodeError, match=text):
                        session.rgb("cam_1", picture, timestamp=seconds)
                with pytest.raises(EpisodeError, match=r"no colour stream 'cam_7'.*cam_0, cam_1"):
                    session.rgb("cam_7", picture)
                with pytest.raises(EpisodeError, match="cannot be registered any more"):
                    session.register_rgb("late", fps=30)
                with pytest.raises(EpisodeError, match="still open"), session.episode():
                    pass
    check_episode(tmp_path / "episode_000000", arrays, 6)


def test_what_cannot_be_registered(tmp_path):
    with live_session(tmp_path, JPEG) as session:
        register(session)
        register(session)  # the same again
        for name in ("a/b", "..", "", ".x", "a" * 200, 7):
            with pytest.raises(EpisodeError, match="not usable"):
                session.register_rgb(name, fps=30)
        for fps in (0, -1, np.nan, np.inf, 1e9, "30", True, None):
            with pytest.raises(ConfigError, match="fps of"):
                session.register_depth("d", fps=fps)
        for dim in (2.5, "3", True, 1 << 40):
            with pytest.raises(ConfigError, match="dim of"):
                session.register_numeric("n", dim=dim)
        with pytest.raises(EpisodeError, match="at least 1"):
            session.register_numeric("n", dim=0)
        with pytest.raises(EpisodeError, match="claim to be the action"):
            session.register_numeric("n", dim=2, role="action")
        with pytest.raises(ConfigError, match="'action' or 'state'"):
            session.register_numeric("n", dim=2, role="actoin")
        with pytest.raises(EpisodeError, match="3 channel names for 2"):
            session.register_numeric("n", dim=2, channel_names=["a", "b", "c"])
        with pytest.raises(ConfigError, match="a list of names"):
            session.register_numeric("n", dim=2, channel_names="ab")
        with pytest.raises(EpisodeError, match="cannot be called"):
            session.register_numeric("frame_time", dim=1)
        with pytest.raises(EpisodeError, match="collides"):
            session.register_numeric("rgb_cam_0_time", dim=1)
        with pytest.raises(EpisodeError, match="registered already"):
            session.register_rgb("cam_0", fps=15)


def test_an_exception_discards_the_episode_and_its_number_goes_on(tmp_path):
    with live_session(tmp_path, JPEG) as session:
        register(session)
        for episode, fails in enumerate([False, True, False]):
            arrays = episode_arrays(episode, 5)
            try:
                with session.episode():
                    for t in range(5):
                        push(session, arrays, t)
                    if fails:
                        raise RuntimeError("the gripper fell off")
            except RuntimeError:
                assert not list((tmp_path / ".knonik" / "tmp").iterdir())
    check_episode(tmp_path / "episode_000000", episode_arrays(0, 5), 5)
    check_episode(tmp_path / "episode_000001", episode_arrays(2, 5), 5)
    assert len(list(tmp_path.glob("episode_*"))) == 2
    assert [(one.status, one.reason) for one in session.report.episodes][1] == (
        "discarded",
        "RuntimeError: the gripper fell off",
    )


def test_an_episode_without_frames_is_an_error_and_takes_no_number(tmp_path):
    arrays = episode_arrays(0, 3)
    with live_session(tmp_path, JPEG) as session:
        with pytest.raises(EpisodeError, match="has no streams"), session.episode():
            pass
        register(session)
        with pytest.raises(EpisodeError, match="nothing was pushed"), session.episode():
            pass

        def capture(*streams):
            with session.episode():
                for name in streams:
                    (session.rgb if name.startswith("cam") else session.numeric)(name, arrays[name][0])

        with pytest.raises(EpisodeError, match="rgb_cam_1, action got none"):
            capture("cam_0", "state")
        with session.episode():
            for t in range(3):
                push(session, arrays, t)
    assert [one.status for one in session.report.episodes] == ["empty", "empty", "empty", "written"]
    check_episode(tmp_path / "episode_000000", arrays, 3)


def test_numbers_go_on_behind_what_is_there(tmp_path):
    for episode in range(2):
        with live_session(tmp_path, JPEG) as session:
            register(session)
            with session.episode():
                push(session, episode_arrays(episode, 1), 0)
        (tmp_path / "episode_000004").mkdir(exist_ok=True)  # somebody else's folder is left alone
    assert sorted(path.name for path in tmp_path.glob("episode_*")) == [
        "episode_000000",
        "episode_000004",
        "episode_000005",
    ]
    check_episode(tmp_path / "episode_000005", episode_arrays(1, 1), 1)


def test_an_ingest_into_the_same_output_leaves_captures_alone(tmp_path):
    raw, out = write_raw(tmp_path / "raw", [4, 5], cameras=2), tmp_path / "out"
    run(ingest_config(), raw, out, engine="inline")
    with live_session(out, JPEG) as session:
        register(session)
        with session.episode():
            push(session, episode_arrays(7, 1), 0)
    report = run(ingest_config(), raw, out, engine="inline", prune=True)
    assert report.pruned == []
    assert len(report.skipped) == 2
    check_episode(out / "episode_000002", episode_arrays(7, 1), 1)


def test_an_existing_dataset_config_is_kept_and_told_of(tmp_path):
    def capture(role, **options):
        with live_session(tmp_path, JPEG, **options) as session:
            session.register_numeric("x", dim=1, role=role)
            with session.episode():
                session.numeric("x", 1)
        return session.report.warnings

    assert capture(None) == []
    before = (tmp_path / "config.json").read_bytes()
    (tmp_path / "config.json").write_bytes(before.replace(b"<FILL:the robot, e.g. aloha>", b"mine"))
    assert capture(None) == []
    assert b'"mine"' in (tmp_path / "config.json").read_bytes()
    capture(None, force_config=True)
    assert (tmp_path / "config.json").read_bytes() == before


def test_times_that_disagree_are_told(tmp_path):
    arrays = episode_arrays(0, 8)
    with live_session(tmp_path, JPEG) as session:
        session.register_rgb("cam_0", fps=30)
        session.register_rgb("cam_1", fps=15)
        session.register_numeric("slow", dim=1)
        with session.episode():
            for t in range(8):
                session.rgb("cam_0", arrays["cam_0"][t], 100 + t / 30)
                session.rgb("cam_1", arrays["cam_1"][t], 100 + t / 15)
                session.numeric("slow", t, 100.0)
    said = "\n".join(session.report.episodes[0].warnings)
    assert "rgb_cam_1 and rgb_cam_0 are up to 0.233 s apart (frame 7)" in said
    assert "slow and rgb_cam_0 are up to 0.233 s apart" in said
    assert "slow: 7 frames have the time of the frame before" in said
    assert "registered with different fps (rgb_cam_0 30, rgb_cam_1 15)" in said
    reader = EpisodeReader(tmp_path / "episode_000000")
    np.testing.assert_array_equal(reader.frame_time(), 100 + np.arange(8) / 30)
    np.testing.assert_array_equal(reader.numeric_time("slow"), np.full(8, 100.0))


def test_numbers_alone_take_their_rate_from_their_clock(tmp_path):
    with live_session(tmp_path) as session:
        session.register_numeric("x", dim=1)
        with session.episode():
            for t in range(600):
                session.numeric("x", t, t / 200)
        with session.episode():
            session.numeric("x", 1e300)
    reader = EpisodeReader(tmp_path / "episode_000000")
    assert reader.metadata.fps == 200
    assert reader.numeric("x")[:, 0].tolist() == list(range(600))
    said = "\n".join(session.report.episodes[1].warnings)
    assert "30 frames a second is assumed" in said
    assert "x: 1 numbers beyond float32" in said


def test_a_thread_a_camera(tmp_path):
    arrays = episode_arrays(5, 30, cameras=4)
    with live_session(tmp_path, JPEG) as session:
        register(session, cameras=4)
        with session.episode():

            def camera(c):
                for t in range(30):
                    session.rgb(f"cam_{c}", arrays[f"cam_{c}"][t], t / 30)

            threads = [threading.Thread(target=camera, args=(c,)) for c in range(4)]
            for thread in threads:
                thread.start()
            for t in range(30):
                session.numeric("state", arrays["state"][t], t / 30)
                session.numeric("action", arrays["action"][t], t / 30)
            for thread in threads:
                thread.join()
    check_episode(tmp_path / "episode_000000", arrays, 30, cameras=4)


def test_a_producer_that_is_too_fast_waits_and_the_report_says_so(tmp_path, monkeypatch):
    from knonik_assets.episodes.writer import EpisodeWriter

    gate, written = threading.Event(), {"cam_0": [], "cam_1": []}
    encode = EpisodeWriter.rgb

    def slowly(self, name, frame):
        if name == "cam_0":
            gate.wait(60)
        written[name].append(read_stamp(frame)[2])
        encode(self, name, frame)

    monkeypatch.setattr(EpisodeWriter, "rgb", slowly)
    arrays, pushed = episode_arrays(0, 60), []
    with live_session(tmp_path, JPEG) as session:
        for name in written:
            session.register_rgb(name, fps=1000)
        with session.episode():

            def produce():
                for t in range(60):
                    for name in written:
                        session.rgb(name, arrays[name][t])
                    pushed.append(t)

            thread = threading.Thread(target=produce)
            thread.start()
            thread.join(0.5)
            assert thread.is_alive()
            assert len(pushed) < 60, "the queue has no bound"
            assert written["cam_0"] == []
            gate.set()
            thread.join()
    assert written == {"cam_0": list(range(60)), "cam_1": list(range(60))}, "a frame was lost"
    reader = EpisodeReader(tmp_path / "episode_000000")
    for camera, name in enumerate(written):
        assert [read_stamp(picture) for picture in reader.rgb(name)] == [(camera, 0, t) for t in range(60)]
    outcome = session.report.episodes[0]
    assert outcome.blocked_seconds >= outcome.longest_block_seconds > 0
    assert any("held up for" in warning for warning in outcome.warnings)
    assert session.report.blocked_seconds == outcome.blocked_seconds


def test_a_disk_that_refuses_ends_the_episode_not_the_session(tmp_path, monkeypatch):
    from knonik_assets.episodes.writer import EpisodeWriter

    encode = EpisodeWriter.rgb

    def full(self, name, frame):
        if read_stamp(frame)[2] == 3:
            raise StorageError("cannot write: no space left on device")
        encode(self, name, frame)

    monkeypatch.setattr(EpisodeWriter, "rgb", full)
    arrays = episode_arrays(0, 50, cameras=1)
    with live_session(tmp_path, JPEG) as session:
        session.register_rgb("cam_0", fps=30)

        def capture(frames):
            with session.episode():
                for t in range(frames):
                    session.rgb("cam_0", arrays["cam_0"][t])

        with pytest.raises(StorageError, match="no space"):
            capture(50)
        capture(1)
        monkeypatch.setattr("knonik_assets.episodes.writer.publish", refuse)
        with pytest.raises(StorageError, match="no inode"):
            capture(1)
        monkeypatch.undo()
        capture(2)
    assert [one.status for one in session.report.episodes] == ["discarded", "written", "failed", "written"]
    assert sorted(path.name for path in tmp_path.glob("episode_*")) == ["episode_000000", "episode_000001"]
    assert EpisodeReader(tmp_path / "episode_000001").length == 2


def refuse(*arguments):
    raise StorageError("cannot put in place: no inode left")


def test_mistakes_in_the_call_touch_nothing(tmp_path, monkeypatch):
    out = tmp_path / "out"
    for options, text in [
        ({"preset": "mediun"}, "medium"),
        ({"preset_overrides": {"rgb": {"gob": 3}}}, "gop"),
        ({"metadata": {"episode_id": 3}}, "filled in by ingest"),
        ({"metadata": {"robot_type": 3}}, "must be a text"),
        ({"metadata": [1]}, "metadata"),
        ({"preset": {"rgb": {"codec": "av1", "chroma": "444"}}}, "444"),
    ]:
        with pytest.raises(ConfigError, match=text):
            live_session(out, **options)
    with pytest.raises(ConfigError, match="no output"):
        live_session("")
    with pytest.raises(ConfigError, match="local disks"):
        live_session("s3://bucket/x")
    session = live_session(out)
    with pytest.raises(ConfigError, match="not entered"):
        session.start()
    monkeypatch.setenv("KNONIK_ISSUER", "https://issuer.example")
    with pytest.raises(LoginRequired):
        live_session(out)
    assert not out.exists()


def test_one_session_at_a_time_writes_an_output(tmp_path):
    with live_session(tmp_path), pytest.raises(StorageError, match="another run"), live_session(tmp_path):
        pass
    with live_session(tmp_path) as session:
        pass
    assert session.report.warnings == ["no episode was written"]
    with pytest.raises(ConfigError, match="entered before"), session:
        pass


def test_a_killed_capture_leaves_whole_episodes_and_the_next_goes_on(tmp_path):
    script = f"""
        import sys, time
        sys.path.insert(0, {str(ROOT)!r})
        from tests.assets.live.test_session import JPEG, episode_arrays, live_session, push, register
        with live_session({str(tmp_path)!r}, "medium") as session:
            register(session)
            for episode in range(2):
                arrays = episode_arrays(episode, 20)
                with session.episode():
                    for t in range(20):
                        push(session, arrays, t)
            with session.episode():
                for t in range(15):
                    push(session, arrays, t)
                print("in the middle", flush=True)
                time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout.readline() == "in the middle\n"
        os.killpg(process.pid, signal.SIGKILL)
    assert len(list((tmp_path / ".knonik" / "tmp").iterdir())) == 1
    assert not (tmp_path / "config.json").exists()
    numbers = tmp_path / ".knonik" / "numbers.json"  # as they are just before an episode is put in place
    numbers.write_text(json.dumps({**json.loads(numbers.read_text()), "live:000002": 2}))
    with live_session(tmp_path, "medium") as session:
        register(session)
        with session.episode():
            push(session, episode_arrays(2, 1), 0)
    assert len(list(tmp_path.glob("episode_*"))) == 3
    for episode, frames in enumerate([20, 20, 1]):
        check_episode(tmp_path / f"episode_{episode:06d}", episode_arrays(episode, frames), frames)
    assert not list((tmp_path / ".knonik" / "tmp").iterdir())
    assert (tmp_path / "config.json").exists()
