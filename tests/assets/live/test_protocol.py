"""The line protocol, in this process and as a producer meets it: a command that reads lines and answers each."""

import errno
import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from knonik.ingest import run_live
from knonik_assets.cli import main
from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.live.protocol import LONGEST_LINE, Protocol
from knonik_assets.live.session import live_session
from knonik_loader.errors import ConfigError
from tests.support.live_lines import lines, write_frames
from tests.support.stamps import episode_arrays, read_stamp

KNONIK = str(Path(sys.executable).with_name("knonik"))
PRESET = {"rgb": {"codec": "jpeg", "quality": 92}}
START = [
    {"cmd": "start", "metadata": {"task": "pick"}},
    {"cmd": "register_rgb", "name": "cam_0", "fps": 30},
    {"cmd": "register_depth", "name": "near", "fps": 30},
    {"cmd": "register_numeric", "name": "action", "dim": 4, "role": "action", "channel_names": ["a", "b", "c", "d"]},
]


def frames(folder, episode, count):
    """The commands of an episode's frames, with their files written."""
    folder.mkdir(exist_ok=True)
    arrays = episode_arrays(episode, count, cameras=1)
    for t in range(count):
        depth = np.full((6, 8), 1000 + 10 * episode + t, np.uint16)
        for cmd, name, value in [
            ("rgb", "cam_0", arrays["cam_0"][t]),
            ("depth", "near", depth),
            ("numeric", "action", arrays["action"][t]),
        ]:
            path = folder / f"{cmd}_{episode}_{t}.npy"
            np.save(path, value)
            yield {"cmd": cmd, "name": name, "path": str(path), "timestamp": t / 30}


def check(path, episode, count):
    reader = EpisodeReader(path)
    assert reader.verify() == []
    assert [read_stamp(frame) for frame in reader.rgb("cam_0")] == [(0, episode, t) for t in range(count)]
    assert [int(frame[0, 0]) for frame in reader.depth("near")] == [1000 + 10 * episode + t for t in range(count)]
    np.testing.assert_array_equal(reader.numeric("action"), episode_arrays(episode, count, cameras=1)["action"])
    np.testing.assert_array_equal(reader.frame_time(), np.arange(count) / 30)
    return reader


def serve(out, commands, **options):
    """Answers of a whole session, from lines or commands."""
    text = b"".join((c if isinstance(c, bytes) else json.dumps(c).encode()) + b"\n" for c in commands)
    answers = io.StringIO()
    report = run_live({"preset": PRESET}, out, source=io.BytesIO(text), answers=answers, **options)
    return report, [json.loads(line) for line in answers.getvalue().splitlines()]


def test_a_producer_in_another_process(tmp_path):
    out = tmp_path / "out"
    (tmp_path / "live.json").write_text(json.dumps({"output_dir": "elsewhere", "preset": PRESET}))
    command = [KNONIK, "ingest", "live", "--config", str(tmp_path / "live.json"), "--output", str(out)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:

        def send(command):
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        for episode in range(2):
            for one in [*START, *frames(tmp_path / "frames", episode, 5), {"cmd": "end"}]:
                assert send(one) == {"ok": True}
            assert (out / f"episode_{episode:06d}" / "metadata.json").exists()
        assert send({"cmd": "exit"}) == {"ok": True}
        rest, said = process.communicate(timeout=60)
    assert (process.returncode, rest) == (0, "")
    assert "2 written, 0 discarded, 0 failed: 10 frames" in said
    for episode in range(2):
        about = check(out / f"episode_{episode:06d}", episode, 5).metadata
        assert about.model_extra["task"] == "pick"
    config = json.loads((out / "config.json").read_text())
    assert config["roles"]["action"] == "action"
    assert config["streams"]["numeric"]["action"]["channel_names"] == ["a", "b", "c", "d"]


def test_ingest_is_still_a_command_of_its_own(tmp_path, capsys, monkeypatch):
    def knonik(*arguments):
        code = main([str(argument) for argument in arguments])
        return code, capsys.readouterr()

    assert "--prune" in knonik("ingest", "--help")[1].out
    text = knonik("ingest", "live", "--help")[1].out
    assert "ingest live" in text
    assert "--prune" not in text
    code, said = knonik("ingest", "live", "--config", tmp_path / "none.json")
    assert code == 2
    assert "there is no file" in said.err
    (tmp_path / "live.json").write_text('{"presset": "high"}')
    code, said = knonik("ingest", "live", "--config", tmp_path / "live.json", "--output", tmp_path / "out")
    assert (code, said.err.count("\n")) == (2, 1)
    assert "did you mean 'preset'?" in said.err
    (tmp_path / "live.json").write_text("{}")
    assert "output_dir in the config" in knonik("ingest", "live", "--config", tmp_path / "live.json")[1].err
    monkeypatch.setenv("KNONIK_ISSUER", "https://issuer.example")
    code, said = knonik("ingest", "live", "--config", tmp_path / "live.json", "--output", tmp_path / "out")
    assert (code, "KNONIK_ISSUER" in said.err) == (1, True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("last", [None, {"cmd": "exit"}])
def test_the_end_of_the_input_finalises_an_open_episode(tmp_path, last):
    commands = [*START, *frames(tmp_path / "frames", 3, 4), *([last] if last else [])]
    report, answers = serve(tmp_path / "out", commands)
    assert all(answer == {"ok": True} for answer in answers)
    assert len(answers) == len(commands)
    assert [one.status for one in report.episodes] == ["written"]
    check(tmp_path / "out" / "episode_000000", 3, 4)


def test_a_producer_that_dies_loses_nothing_it_sent(tmp_path):
    """Nobody reads the answers any more, and a last line is cut in its middle."""
    out = tmp_path / "out"
    (tmp_path / "live.json").write_text(json.dumps({"preset": PRESET}))
    command = [KNONIK, "ingest", "live", "--config", str(tmp_path / "live.json"), "--output", str(out)]
    sent = "".join(json.dumps(one) + "\n" for one in [*START, *frames(tmp_path / "frames", 0, 3)]) + '{"cmd": "ab'
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        process.stdin.write(sent.encode())
        process.stdin.close()
        said = process.stderr.read().decode()
        assert process.wait(60) == 0, said
    assert "Traceback" not in said
    assert "Exception" not in said
    check(out / "episode_000000", 0, 3)


def test_answers_that_nobody_can_write_down_cost_no_frame(tmp_path):
    class Full(io.StringIO):
        def flush(self):
            raise OSError(errno.ENOSPC, "No space left on device")

    commands = [*START, *frames(tmp_path / "frames", 3, 4), {"cmd": "end"}]
    text = b"".join(json.dumps(one).encode() + b"\n" for one in commands)
    report = run_live({"preset": PRESET}, tmp_path / "out", source=io.BytesIO(text), answers=Full())
    assert [one.status for one in report.episodes] == ["written"]
    (told,) = [one for one in report.warnings if "answers" in one]
    assert "No space left on device" in told


def test_a_closed_standard_input_is_a_mistake_in_the_call(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(ConfigError, match="standard input is closed"):
        run_live({"preset": PRESET}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_rows_without_a_number_are_told(tmp_path):
    (tmp_path / "frames").mkdir()
    np.save(tmp_path / "frames" / "row.npy", np.array([np.nan, 1.0]))
    row = {"cmd": "numeric", "name": "state", "path": str(tmp_path / "frames" / "row.npy")}
    start = [{"cmd": "start"}, {"cmd": "register_numeric", "name": "state", "dim": 2}]
    report, _ = serve(tmp_path / "out", [*start, row, row, {"cmd": "end"}])
    assert any("state: 2 of 2 rows hold NaN or infinity" in text for text in report.episodes[0].warnings)


def test_sigterm_discards_what_is_open_and_keeps_what_is_whole(tmp_path):
    (tmp_path / "live.json").write_text(json.dumps({"output_dir": str(tmp_path / "out"), "preset": PRESET}))
    command = [KNONIK, "ingest", "live", "--config", str(tmp_path / "live.json")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        for one in [*START, *frames(tmp_path / "frames", 0, 3), {"cmd": "end"}, *START, *frames(tmp_path / "f", 1, 2)]:
            process.stdin.write(json.dumps(one) + "\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline()) == {"ok": True}
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "Traceback" not in said
    assert [path.name for path in (tmp_path / "out").glob("episode_*")] == ["episode_000000"]
    check(tmp_path / "out" / "episode_000000", 0, 3)
    assert (tmp_path / "out" / "config.json").exists()


BAD_LINES = [
    (b"", "is empty"),
    (b" ", "is empty"),
    (b"{", "line 1"),
    (b"[]", "one JSON object"),
    (b"3", "one JSON object"),
    (b"\xff\xfe", "UTF-8"),
    (b"[" * 100_000, "nested too deeply"),
    (b'{"cmd": "end", "cmd": "abort"}', "stands twice"),
    (b'{"cmd": "rgb", "name": "cam_0", "path": "x.npy", "timestamp": NaN}', "NaN"),
    (b'{"cmd": "rgb", "name": "cam_0", "path": "x.npy", "timestamp": 1e999}', "timestamp"),
    (b'{"cmd": "rgb", "name": "cam_0", "path": "x.npy", "timestamp": "1"}', "timestamp"),
    (b'{"cmd": "rgbb"}', "did you mean 'rgb'"),
    (b'{"cmd": 3}', "cmd must be one of start"),
    (b"{}", "cmd must be one of start"),
    (b'{"cmd": "end", "now": 1}', "unknown key 'now'"),
    (b'{"cmd": "start"}', "still open"),
    (b'{"cmd": "register_rgb", "name": "cam_0"}', "fps: is required"),
    (b'{"cmd": "register_rgb", "name": "new", "fps": 30}', "cannot be registered any more"),
    (b'{"cmd": "register_numeric", "name": "n", "dim": 2, "role": "acton"}', "role"),
    (b'{"cmd": "rgb", "name": "other", "path": "rgb.npy"}', "no colour stream 'other'"),
    (b'{"cmd": "rgb", "name": "cam_0"}', "path: is required"),
    (b'{"cmd": "rgb", "name": "cam_0", "path": "none.npy"}', "No such file"),
    (b'{"cmd": "rgb", "name": "cam_0", "path": "/dev/zero"}', "no .npy file"),
    (b'{"cmd": "rgb", "name": "cam_0", "path": "fifo.npy"}', "no .npy file"),
    (b'{"cmd": "rgb", "name": "cam_0", "path": "folder.npy"}', "no .npy file"),
    (b'{"cmd": "rgb", "name": "cam_0", "path": "a\\u0000b.npy"}', "zero byte"),
    (b'{"cmd": "rgb", "name": "cam_0", "path": "\\ud800.npy"}', "cannot be read"),
    (b'{"cmd": "rgb", "name": "cam_0", "path": "pickle.npy"}', "object"),
    (b'{"cmd": "rgb", "name": "cam_0", "path": "cut.npy"}', "cut off"),
    (b'{"cmd": "rgb", "name": "cam_0", "path": "huge.npy"}', "cut off"),
    (b'{"cmd": "rgb", "name": "cam_0", "path": "nothing.npy"}', "damaged"),
    (b'{"cmd": "rgb", "name": "cam_0", "path": "other.npy"}', "keeps one shape"),
    (b'{"cmd": "numeric", "name": "action", "path": "row.npy"}', "wanted 4 numbers"),
    (b'{"cmd": "depth", "name": "near", "path": "rgb.npy"}', "wanted a depth map"),
    (b" " * (LONGEST_LINE + 5) + b'{"cmd": "abort"}', "longer than"),
    (b'{"cmd": "abort", "x": "' + b"x" * 3 * LONGEST_LINE + b'"}', "longer than"),
]


def test_every_bad_line_is_one_error_and_the_episode_goes_on(tmp_path, monkeypatch):
    folder = tmp_path / "bad"
    write_frames(folder)
    os.mkfifo(folder / "fifo.npy")
    monkeypatch.chdir(folder)
    good = [*START, *frames(tmp_path / "frames", 0, 4)]
    commands = [
        *good[:10],
        *(line for line, _ in BAD_LINES),
        *good[10:],
        {"cmd": "end"},
        {"cmd": "end"},
        {"cmd": "abort"},
    ]
    report, answers = serve(tmp_path / "out", commands)
    assert len(answers) == len(commands)
    for (line, text), answer in zip(BAD_LINES, answers[10:], strict=False):
        assert answer["ok"] is False
        assert text in answer["error"], line[:200]
        assert set(answer) == {"ok", "error"}
        assert "\n" not in answer["error"]
    rest = answers[:10] + answers[10 + len(BAD_LINES) : -2]
    assert all(answer == {"ok": True} for answer in rest)
    assert ["no episode is open" in answer["error"] for answer in answers[-2:]] == [True, True]
    assert [one.status for one in report.episodes] == ["written"]
    check(tmp_path / "out" / "episode_000000", 0, 4)


def test_nothing_is_allocated_for_what_a_header_claims(tmp_path):
    """A sparse file as long as its header says: the stream's own shape refuses it before it is read."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": (1 << 20, 1 << 20, 3)})
    path = tmp_path / "sparse.npy"
    with path.open("wb") as file:
        file.write(head.getvalue())
        file.truncate(len(head.getvalue()) + (3 << 40))
    row = {"cmd": "numeric", "name": "action", "path": str(path)}
    picture = {"cmd": "rgb", "name": "cam_0", "path": str(path)}
    _, answers = serve(tmp_path / "out", [*START, picture, row])
    assert "wanted a picture" in answers[-2]["error"]
    assert "wanted 4 numbers" in answers[-1]["error"]


def test_streams_belong_to_their_episode(tmp_path):
    folder = tmp_path / "frames"
    commands = [
        *START, *frames(folder, 0, 2), {"cmd": "end"},
        START[1],
        {"cmd": "start"}, next(frames(folder, 1, 1)),
        {"cmd": "abort"},
        *START, *frames(folder, 2, 2), {"cmd": "end"},
    ]  # fmt: skip
    report, answers = serve(tmp_path / "out", commands)
    wrong = [answer["error"] for answer in answers if not answer["ok"]]
    assert len(wrong) == 2
    assert "registered after its start" in wrong[0]
    assert "no colour stream 'cam_0' is registered in episode_000001; registered: none" in wrong[1]
    assert [one.status for one in report.episodes] == ["written", "discarded", "written"]
    check(tmp_path / "out" / "episode_000001", 2, 2)


def test_text_streams_serve_as_well(tmp_path, monkeypatch, capsys):
    """``sys.stdin`` may be anything with lines."""
    commands = [*START, *frames(tmp_path / "frames", 0, 2), {"cmd": "end"}]
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(json.dumps(one) + "\n" for one in commands)))
    report = run_live({"output_dir": str(tmp_path / "out"), "preset": PRESET})
    assert capsys.readouterr().out.splitlines() == ['{"ok": true}'] * len(commands)
    assert report.frames == 2
    with pytest.raises(ConfigError, match="must hold a block"):
        run_live([], tmp_path)


@pytest.mark.parametrize("seed", range(4))
def test_random_lines_never_end_a_session(tmp_path, seed):
    paths = write_frames(tmp_path / "frames")
    out = tmp_path / "out"
    with live_session(out, {"rgb": {"codec": "jpeg"}}) as session:
        protocol = Protocol(session)
        for line in lines(seed, 500, paths):
            answer = protocol.answer(line)
            assert answer == {"ok": True} or (answer["ok"] is False and answer["error"]), line
            json.dumps(answer)
        if session.is_open:
            session.abort()
        assert not protocol.over
        with session.episode():
            session.register_numeric("after", dim=1)
            session.numeric("after", 1)
    for path in out.glob("episode_*"):
        assert EpisodeReader(path).verify() == []
    assert len(list(out.glob("episode_*"))) == len(session.report.written) > 0
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("live_")] == []
