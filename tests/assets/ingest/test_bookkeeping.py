"""Lock, numbers, digests of files, counts of frames and what a person sees."""

import io
import json
import os
import subprocess
import sys
import textwrap
import time

import pytest
from rich.console import Console

from knonik_assets.ingesting.fingerprints import FileDigests
from knonik_assets.ingesting.lock import OutputLock
from knonik_assets.ingesting.numbering import assign_numbers, read_numbers
from knonik_assets.ingesting.progress import FrameCount, console_progress
from knonik_loader.errors import EpisodeError, StorageError


def test_the_lock_dies_with_its_process(tmp_path):
    script = textwrap.dedent(
        f"""
        import sys, time
        from pathlib import Path
        from knonik_assets.ingesting.lock import OutputLock
        with OutputLock(Path({str(tmp_path)!r}), "the other"):
            print("held", flush=True)
            time.sleep(60)
        """
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(StorageError, match=f"process {other.pid} on .*the other"), OutputLock(tmp_path):
            pass
        other.kill()
        other.wait()
    with OutputLock(tmp_path):
        assert json.loads((tmp_path / ".knonik" / "lock").read_text())["pid"] == os.getpid()
    assert (tmp_path / ".knonik" / "lock").read_text() == ""


def test_a_lock_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="file"), OutputLock(tmp_path / "file" / "out"):
        pass


def test_a_run_that_fails_leaves_no_directory_that_only_it_made(tmp_path):
    def run(out, name):
        with OutputLock(out):
            if name:
                (out / name).write_text("something")
            raise EpisodeError("no good")

    def fail(out, name=""):
        with pytest.raises(EpisodeError, match="no good"):
            run(out, name)

    fail(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()
    fail(tmp_path / "c", "kept")
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["kept"]
    fail(tmp_path / "d", ".knonik/numbers")
    assert (tmp_path / "d" / ".knonik" / "numbers").exists()
    (tmp_path / "e").mkdir()
    fail(tmp_path / "e")
    assert list((tmp_path / "e").iterdir()) == []
    with OutputLock(tmp_path / "f"):
        pass
    fail(tmp_path / "f")
    assert (tmp_path / "f" / ".knonik" / "lock").exists()


def test_a_lock_file_that_its_last_holder_removed_is_not_taken(tmp_path, monkeypatch):
    """A second run opened it just before; it would hold a lock that no third run could see."""
    real, opened = os.open, []

    def open_late(path, *options):
        file = real(path, *options)
        if not opened:
            opened.append(file)
            (tmp_path / ".knonik" / "lock").unlink()
        return file

    monkeypatch.setattr("knonik_assets.ingesting.lock.os.open", open_late)
    with (
        OutputLock(tmp_path, "the second"),
        pytest.raises(StorageError, match="the second"),
        OutputLock(tmp_path, "the third"),
    ):
        pass


def test_directories_that_another_run_removes_are_made_again(tmp_path, monkeypatch):
    real, removed = os.open, []

    def open_late(path, *options):
        if not removed:
            removed.append(path)
            path.parent.rmdir()
        return real(path, *options)

    monkeypatch.setattr("knonik_assets.ingesting.lock.os.open", open_late)
    with OutputLock(tmp_path / "out"):
        assert (tmp_path / "out" / ".knonik" / "lock").exists()


def test_numbers_only_grow(tmp_path):
    (tmp_path / ".knonik").mkdir()
    first = assign_numbers(tmp_path, ["b", "c"], read_numbers(tmp_path))
    assert first == {"b": 0, "c": 1}
    second = assign_numbers(tmp_path, ["a", "c", "d"], read_numbers(tmp_path))
    assert second == {"b": 0, "c": 1, "a": 2, "d": 3}
    assert read_numbers(tmp_path) == second


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 0, "b": 0}', '{"a": "0"}', '{"a": -1}', '{"a": true}'])
def test_a_damaged_record_of_numbers_is_refused(tmp_path, text):
    (tmp_path / ".knonik").mkdir()
    (tmp_path / ".knonik" / "numbers.json").write_text(text)
    with pytest.raises(StorageError, match=r"numbers\.json is damaged"):
        read_numbers(tmp_path)


def age(path, seconds=100):
    stamp = time.time_ns() - seconds * 10**9
    os.utime(path, ns=(stamp, stamp))


def test_settled_files_are_read_once(tmp_path):
    file, cache = tmp_path / "a", tmp_path / "cache.json"
    file.write_bytes(b"one")
    age(file)
    digests = FileDigests(cache)
    digest = digests.file_digest(file)
    digests.save()
    known = file.stat()
    file.write_bytes(b"two")  # behind the cache's back: same size, same time of change
    os.utime(file, ns=(known.st_mtime_ns, known.st_mtime_ns))
    assert FileDigests(cache).file_digest(file) == digest
    age(file, 50)
    assert FileDigests(cache).file_digest(file) != digest


def test_files_that_have_just_changed_are_not_trusted(tmp_path):
    file, cache = tmp_path / "a", tmp_path / "cache.json"
    file.write_bytes(b"one")
    digests = FileDigests(cache)
    digest = digests.file_digest(file)
    known = file.stat()
    file.write_bytes(b"two")
    os.utime(file, ns=(known.st_mtime_ns, known.st_mtime_ns))
    assert digests.file_digest(file) != digest
    assert digests.take_new() == {}


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', '{"a": [1, 2]}'])
def test_a_damaged_cache_is_no_cache(tmp_path, text):
    (tmp_path / "cache.json").write_text(text)
    (tmp_path / "a").write_bytes(b"one")
    assert len(FileDigests(tmp_path / "cache.json").file_digest(tmp_path / "a")) == 64


def test_a_file_that_is_gone_is_the_episodes_trouble(tmp_path):
    with pytest.raises(EpisodeError, match="gone"):
        FileDigests().file_digest(tmp_path / "gone")


def test_lines_where_there_is_no_terminal():
    said = io.StringIO()
    progress = console_progress(Console(file=said, force_terminal=False))
    progress.begin(4, "episodes")
    progress.advance("episode_000000 written: [bold]")
    progress.advance()
    progress.advance("two more", 2)
    progress.end()
    assert said.getvalue().splitlines() == [
        "episodes: 4 to do",
        "[1/4] episode_000000 written: [bold]",
        "[4/4] two more",
    ]


def test_bars_on_a_terminal_show_the_frames_of_the_workers(tmp_path):
    said = io.StringIO()
    progress = console_progress(Console(file=said, force_terminal=True, width=100))
    progress.end()
    count = FrameCount(tmp_path / "episode_000000", 40)
    progress.begin(3, "episodes", tmp_path)
    count._next = 0.0
    count.add(17)
    progress.advance("episode_000001 written")
    progress.end()
    progress.end()
    assert "episode_000001 written" in said.getvalue()
    assert "17/40" in said.getvalue()
    assert "1/3" in said.getvalue()
    count.close()
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_do_shows_nothing():
    for terminal in (True, False):
        said = io.StringIO()
        progress = console_progress(Console(file=said, force_terminal=terminal))
        progress.begin(0)
        progress.end()
        assert said.getvalue() == ""
