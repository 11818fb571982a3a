"""A network between the loader and S3 that fails in every way: equal batches, or one error that says what and why."""

import asyncio
import json
import os
import random
import subprocess
import sys
import threading
from datetime import timedelta

import numpy as np
import pytest

from knonik_loader import KnonikError, ShardedDataLoader, StorageError
from knonik_loader.engine import objects
from knonik_loader.errors import ChecksumError, TruncatedError
from tests.support.proxy import FaultyProxy
from tests.support.threads import asking

pytestmark = pytest.mark.usefixtures("credentials")


@pytest.fixture(scope="module")
def expected(packed) -> list[dict]:
    with ShardedDataLoader(packed.config(stride=3)) as loader:
        return list(loader)


@pytest.fixture
def through(packed, bucket, monkeypatch):
    """A function: what goes wrong → (proxy that is running, config of a loader behind it)."""
    monkeypatch.setattr(objects, "_BACKOFF_S", 0.01)
    quick = {"init_backoff": timedelta(milliseconds=5), "max_backoff": timedelta(milliseconds=20), "base": 2}
    monkeypatch.setattr(objects, "_RETRY", objects._RETRY | {"backoff": quick})
    running = []

    def start(fault, **keys):
        proxy = FaultyProxy(bucket["endpoint_url"], fault).__enter__()
        running.append(proxy)
        params = {**bucket, "endpoint_url": proxy.url}
        keys = {"hlp_manifest": "hlp_manifest.json", "stride": 3, "num_fetchers": 4} | keys
        return proxy, packed.config(fs_type="s3", fs_params=params, **keys)

    yield start
    for proxy in running:
        proxy.__exit__()


def sometimes(fault: str, share: float):
    """The fault for a share of the requests, by a fixed sequence."""
    generator, lock = random.Random(5), threading.Lock()

    def pick(request):
        with lock:
            return fault if generator.random() < share else None

    return pick


def first_time(fault: str, only=lambda request: True):
    """The fault for the first request of every object and range; a part of it asked for again counts as seen."""
    seen, lock = [], threading.Lock()

    def pick(request):
        first, _, last = (request.range or "bytes=0-").removeprefix("bytes=").partition("-")
        start, end = int(first), int(last or 1 << 60)
        with lock:
            known = any(path == request.path and low <= start and end <= high for path, low, high in seen)
            if known or not only(request):
                return None
            seen.append((request.path, start, end))
            return fault

    return pick


def once_stalled():
    """An event that is set when the first of the packed data is asked for, and the fault that it never comes."""
    stalled = threading.Event()

    def pick(request):
        if request.path.endswith(".khlp"):
            stalled.set()
            return "stall"
        return None

    return stalled, pick


def same(batches, expected) -> None:
    assert len(batches) == len(expected)
    for one, other in zip(batches, expected, strict=True):
        for key, value in one.items():
            if isinstance(value, np.ndarray):
                np.testing.assert_array_equal(value, other[key], err_msg=key)


@pytest.mark.parametrize("fault", ["503", "reset", "cut", "short", "wrong"])
def test_what_passes_is_overcome(through, expected, fault):
    pick = first_time(fault) if fault in {"wrong", "short", "cut", "reset"} else sometimes("503", 0.3)
    proxy, config = through(pick)
    with ShardedDataLoader(config) as loader:
        batches = list(loader)
        assert loader.stats()["errors"] == 0
    same(batches, expected)
    assert proxy.count(fault) >= 5


def test_no_checksum_is_needed_to_notice_a_short_body(through, expected):
    _, config = through(first_time("short"), verify_checksums=False)
    with ShardedDataLoader(config) as loader:
        same(list(loader), expected)


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        ("short", TruncatedError, "bytes came where"),
        ("cut", StorageError, "cannot be read after 5 attempts"),
        ("wrong", ChecksumError, r"crc32c is .*, packed as .*read twice"),
        ("403", StorageError, "credentials were refused 5 times.*ExpiredToken"),
        ("skew", StorageError, "clock is too far from the store's.*RequestTimeTooSkewed"),
    ],
)
def test_what_stays_is_one_error_that_says_which_object_and_why(through, bucket, fault, kind, said):
    """Only payloads of one file are concerned, so that opening the dataset works."""
    spared = threading.Event()

    def pick(request):
        return fault if spared.is_set() and request.path.endswith("hlp_000001.khlp") else None

    _, config = through(pick, shuffle_mode="none", chunk_len=1)
    with ShardedDataLoader(config) as loader:
        dataset = loader._engine.sources[0].dataset
        dataset.hlp_index(1)  # the damage is to the payloads
        spared.set()
        batches, errors = [], []
        iterator = iter(loader)
        while not (errors and batches):
            try:
                batches.append(next(iterator))
            except KnonikError as error:
                errors.append(error)
    assert errors
    assert batches  # those of other files go on
    first = errors[0]
    assert isinstance(first, kind)
    for part in ("s3://bkt/lake/hlp_000001.khlp", "HLP 1 (hlp_000001.khlp), shard ", "episode 'episode_0000"):
        assert part in str(first), (part, str(first))
    with pytest.raises(kind, match=f"(?s){said}"):
        raise first


@pytest.mark.parametrize("name", ["hlp_manifest.json", "hlp_index.khli"])
@pytest.mark.parametrize("fault", ["wrong", "short", "cut"])
def test_opening_a_dataset_survives_one_bad_answer_and_names_the_object_after_more(through, expected, name, fault):
    _, config = through(first_time(fault, lambda request: request.path.endswith(name)))
    with ShardedDataLoader(config) as loader:
        same([next(iter(loader))], expected[:1])
    _, config = through(lambda request: fault if request.path.endswith(name) else None)
    with pytest.raises(KnonikError, match=name):
        ShardedDataLoader(config)


@pytest.mark.parametrize("fault", ["wrong", "short"])
def test_an_index_of_a_file_is_read_again_too(through, expected, fault):
    seen = set()

    def pick(request):
        if not request.path.endswith(".khlp") or request.path in seen:
            return None
        seen.add(request.path)  # the first request of a file is that of its tail
        return fault

    _, config = through(pick, num_fetchers=1)
    with ShardedDataLoader(config) as loader:
        same(list(loader), expected)


def test_expired_credentials_are_looked_for_again(through, expected, monkeypatch):
    """The token expires in the middle of the run; whoever renews it does so a moment later."""
    refused = threading.Event()

    def pick(request):
        if request.number > 12 and "Credential=renewed/" not in request.authorization:
            if refused.is_set():
                os.environ["AWS_ACCESS_KEY_ID"] = "renewed"
            refused.set()
            return "403"
        return None

    proxy, config = through(pick)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "expired")
    with ShardedDataLoader(config) as loader:
        same(list(loader), expected)
    assert proxy.count("403") >= 2


def test_an_outage_is_not_skipped(through):
    spared = threading.Event()
    _, config = through(lambda request: "403" if spared.is_set() else None, on_error="skip")
    with ShardedDataLoader(config) as loader:
        spared.set()
        with pytest.raises(StorageError, match="credentials were refused"):
            next(iter(loader))
        assert loader.stats()["skipped"] == 0


def test_shutdown_while_s3_stalls(through):
    stalled, pick = once_stalled()
    proxy, config = through(pick)
    loader = ShardedDataLoader(config)
    consumer, told = asking(iter(loader))
    assert stalled.wait(30)
    assert ours()
    loader.shutdown()
    assert not ours()  # S3 still stalls: the reads were given up
    consumer.join(60)
    assert told == ["this pass has ended: the loader was shut down."]
    loader.shutdown()
    assert proxy.count("stall")


def test_a_program_ends_while_s3_stalls(through):
    """Without a word to the loader; the server never answers, and gives up its own waiting after minutes."""
    stalled, pick = once_stalled()
    _, config = through(pick)
    script = "import json, sys; from knonik_loader import ShardedDataLoader\n"
    script += "batches = iter(ShardedDataLoader(json.loads(sys.argv[1])))\nsys.stdin.readline()"
    command = [sys.executable, "-c", script, json.dumps(config)]
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as run:
        assert stalled.wait(60)
        _, said = run.communicate("\n", timeout=30)
    assert (run.returncode, said) == (0, "")


def test_opening_inside_a_running_event_loop(through, expected):
    """As in a notebook."""
    _, config = through(lambda request: None)

    async def cell():
        with ShardedDataLoader(config) as loader:
            return list(loader)

    same(asyncio.run(cell()), expected)


def ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("knonik-")]


def test_ranges_are_asked_for_in_parallel(through):
    """As many requests are under way at once as there are fetchers."""
    lock, under_way, most, full = threading.Lock(), [0], [0], threading.Event()

    def pick(request):
        if not request.path.endswith(".khlp"):
            return
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
            if under_way[0] >= 3:
                full.set()
        full.wait(10)
        with lock:
            under_way[0] -= 1
        return

    _, config = through(pick)
    with ShardedDataLoader(config) as loader:
        next(iter(loader))
    assert most[0] >= 3
