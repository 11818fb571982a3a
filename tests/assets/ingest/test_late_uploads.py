"""A run that stood still for longer than its lease goes on while, or after, another one wrote the same episode."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from knonik_assets.episodes import remote
from knonik_assets.episodes.remote import publish_remote
from knonik_assets.ingest import run
from knonik_assets.storage import LEASE, ObjectFolder, check_lease
from tests.support.buckets import bucket_tree, folder_at, upload_tree
from tests.support.proxy import FaultyProxy
from tests.support.road import ingest_config, tree, write_json, write_raw

EPISODE = "episode_000000"
LARGE = 2_000


@pytest.fixture(autouse=True)
def large_files(monkeypatch):
    """Files of more than 1,000 bytes take the road of large ones."""
    monkeypatch.setattr(remote, "ONE_PIECE", 1_000)


def write_files(folder: Path, letter: str, extra: str | None = None) -> Path:
    """Files of an episode, all of one letter; those of two letters have equal sizes."""
    names = {"metadata.json": 90, "rgb_cam.webm": 300, "depth_cam.hdf5": LARGE, "action/.zarray": 20}
    for name, size in {**names, **({extra: 5} if extra else {})}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(letter * size)
    return folder


def hold(url: str, holder: str) -> None:
    folder_at(url).put_bytes(LEASE, json.dumps({"id": holder}).encode())


class First:
    """A run that uploads an episode through a proxy, with one request that stalls."""

    def __init__(self, server: str, url: str, files: Path, stalls=None, how: str = "stall") -> None:
        self.seen: list[tuple[str, str]] = []
        met = threading.Event()

        def fault(request):
            path = re.sub(r"[0-9a-f]{32}", "ID", request.path.removeprefix("/" + url.split("/")[2]))
            one = (request.method, re.sub(r"uploadId=[^&]+", "uploadId", path.replace(url.split("/", 3)[3], "OUT")))
            self.seen.append(one)
            if stalls is None or met.is_set() or (one, Counter(self.seen)[one]) != stalls:
                return None
            met.set()
            return how

        self._proxy = FaultyProxy(server, fault)
        self.stalled = self._proxy.held
        folder = ObjectFolder(folder_at(url).place, {"endpoint_url": self._proxy.url})
        self._call = partial(publish_remote, files, folder, EPISODE, partial(check_lease, folder, "first"))

    def __enter__(self):
        self._proxy.__enter__()
        self._pool = ThreadPoolExecutor(1)
        self._run = self._pool.submit(self._call)
        return self

    def __exit__(self, *_):
        self.ended()
        self._pool.shutdown()
        self._proxy.__exit__()

    def ended(self) -> BaseException | None:
        """Let it go on, and tell what it ended with."""
        self._proxy.release()
        return self._run.exception(timeout=60)


def requests_of(server, url, files):
    """What an undisturbed run asks for, each with how often it was asked before."""
    with First(server, url, files) as first:
        assert first.ended() is None
    seen = Counter()
    for one in first.seen:
        seen[one] += 1
        yield one, seen[one]


@pytest.mark.parametrize(("before", "how"), [(None, "stall"), ("older", "stall"), ("older", "late")])
def test_whichever_request_stalls_no_two_runs_files_mix(s3, s3_server, tmp_path, before, how):
    mine, theirs = (
        write_files(tmp_path / letter, letter, extra) for letter, extra in (("a", "rgb_top.webm"), ("b", None))
    )
    wanted = tree(theirs)

    def prepare(number):
        url = f"{s3}/out{number:03d}"
        if before:
            upload_tree(write_files(tmp_path / before, "o"), f"{url}/{EPISODE}")
        hold(url, "first")
        return url

    asked = list(requests_of(s3_server, prepare(0), mine))
    assert len(asked) >= 14, asked
    spared = {"stall": None if before else "GET", "late": "PUT"}[how]  # much like one that is tried
    unwhole = []
    for number, stalls in enumerate((one for one in asked if one[0][0] != spared), 1):
        url = prepare(number)
        with First(s3_server, url, mine, stalls, how) as first:
            assert first.stalled.wait(30), stalls
            hold(url, "second")
            publish_remote(theirs, folder_at(url), EPISODE, partial(check_lease, folder_at(url), "second"))
            error = first.ended()
        there = bucket_tree(f"{url}/{EPISODE}")
        assert {key: data for key, data in there.items() if key in wanted and data != wanted[key]} == {}, stalls
        assert there.keys() - wanted.keys() <= {"rgb_top.webm"}
        if wanted.keys() - there.keys():
            unwhole.append(stalls[0][0])
        assert "was taken over by another run" in str(error), stalls
    # what stalls where it removes an older episode may remove the new one, which everybody sees and the next run mends
    assert set(unwhole) <= {"GET", "POST"}
    assert len(unwhole) == (0 if before is None else 2), unwhole


def test_writes_whose_answers_are_lost_are_written_once_more(s3, s3_server, tmp_path):
    """What stands in the way then is one's own."""
    files, url = write_files(tmp_path / "files", "a"), f"{s3}/out"
    hold(url, "first")
    met = set()

    def fault(request):
        if request.method not in ("PUT", "POST", "DELETE") or request.path in met:
            return None
        met.add(request.path)
        return "lost"

    with FaultyProxy(s3_server, fault) as proxy:
        folder = ObjectFolder(folder_at(url).place, {"endpoint_url": proxy.url})
        publish_remote(files, folder, EPISODE, partial(check_lease, folder_at(url), "first"))
    assert proxy.count("lost") >= 4
    assert bucket_tree(f"{url}/{EPISODE}") == tree(files)
    assert not [key for key in bucket_tree(url) if key.startswith(remote.ASIDE)]


@pytest.mark.parametrize("at", [2, 3])
def test_an_upload_that_arrives_while_the_next_run_writes_is_removed(s3, s3_server, tmp_path, at):
    """The stalled request goes on at one of the moments at which the later run looks whether it still holds the lease."""
    mine, theirs = write_files(tmp_path / "a", "a", "rgb_top.webm"), write_files(tmp_path / "b", "b")

    def prepare(number):
        url = f"{s3}/out{number:03d}"
        upload_tree(write_files(tmp_path / "older", "o"), f"{url}/{EPISODE}")
        hold(url, "first")
        return url

    arrived = 0
    writes = [one for one in requests_of(s3_server, prepare(0), mine) if one[0][0] == "PUT"]
    assert len(writes) > 5, writes
    for number, stalls in enumerate(writes if at == 2 else writes[-3:], 1):
        url = prepare(number)
        folder = folder_at(url)
        with First(s3_server, url, mine, stalls) as first:
            assert first.stalled.wait(30), stalls
            hold(url, "second")
            looks = 0

            def check(first=first, folder=folder):
                nonlocal looks, arrived
                check_lease(folder, "second")
                looks += 1
                if looks == at:
                    first.ended()
                    arrived += b"a" in b"".join(bucket_tree(f"{folder.place}/{EPISODE}").values())

            publish_remote(theirs, folder, EPISODE, check)
            assert looks >= at
        there = bucket_tree(f"{url}/{EPISODE}")
        assert there.keys() - tree(theirs).keys() <= ({"rgb_top.webm"} if at == 3 else set()), stalls
        assert {key: data for key, data in there.items() if key != "rgb_top.webm"} == tree(theirs), stalls
    assert arrived, "none of them wrote anything late"


@pytest.mark.parametrize("key", ["rgb_cam_0.mkv", "metadata.json", "numbers.json", "config.json"])
def test_an_ingest_that_outlived_its_lease_hurts_no_later_one(s3, s3_server, tmp_path, scratch, key):
    """Its upload of one file stalls for so long that another run replaces the episodes, and arrives after that."""
    raw, out = write_raw(tmp_path / "stamped", [5, 6], cameras=1), f"{s3}/out"
    first = write_json(tmp_path / "first.json", ingest_config(cameras=1))
    second = ingest_config(cameras=1, preset={"rgb": {"codec": "jpeg", "quality": 50}}, metadata={"dataset": "other"})
    if key == "numbers.json":
        (tmp_path / "others").mkdir()
        for path in sorted(raw.iterdir()):
            shutil.copy(path, tmp_path / "others" / path.name.replace("_", "_7"))
    stalled = threading.Event()

    def fault(request):
        if request.method == "PUT" and request.path.endswith(key):
            stalled.set()
        return "stall" if request.method == "PUT" and stalled.is_set() else None

    with FaultyProxy(s3_server, fault) as proxy:
        call = ["ingest", "--config", first, "--input", raw, "--output", out, "--quiet", "--engine", "inline"]
        environment = {**os.environ, "AWS_ENDPOINT_URL": proxy.url}
        program = [Path(sys.executable).with_name("knonik"), *call]
        with subprocess.Popen(program, env=environment, stderr=subprocess.PIPE, text=True) as process:
            assert stalled.wait(120)
            far = {**json.loads(folder_at(out).read_bytes(LEASE)), "process": {"machine": "far"}, "seconds": 0.1}
            info = folder_at(out).put_bytes(LEASE, json.dumps(far).encode())
            while time.time() < info.modified + 1.2:
                time.sleep(0.05)
            source = tmp_path / "others" if key == "numbers.json" else raw
            assert not run(second, source, out, engine="inline").failed
            there = bucket_tree(out)
            proxy.release()
            said = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert "was taken over by another run" in said
    del there[LEASE]
    after = bucket_tree(out)
    assert {name: after[name] for name in there} == there
    assert after.keys() - there.keys() <= {LEASE}
    again = run(second, source, out, engine="inline")
    assert [one.status for one in again.episodes] == ["skipped"] * 2
