"""One run at a time writes a remote folder."""

import json
import subprocess
import sys
import time

import pytest

from knonik_assets.storage import LEASE, Lease, ObjectFolder, Place
from knonik_loader.errors import StorageError

HOLD = """
import sys
from knonik_assets.storage import Lease, ObjectFolder, Place
with Lease(ObjectFolder(Place.of(sys.argv[1], "out")), "the other"):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def folder(s3):
    return ObjectFolder(Place.of(f"{s3}/lake", "out"))


def foreign(folder, seconds=60.0, **said):
    """The lease of a process of another machine."""
    text = {"id": "x", "pid": 1, "host": "far", "process": {"machine": "far", "began": "1"}, "command": "c"}
    return folder.put_bytes(LEASE, json.dumps(text | {"seconds": seconds, "released": False} | said).encode())


def test_the_second_is_told_who_holds_it(folder):
    with (
        Lease(folder, "first"),
        pytest.raises(StorageError, match=r"lake is being written by another run \(process \d+ .*: first\)"),
        Lease(folder, "second"),
    ):
        pass
    with Lease(folder, "third") as lease:
        lease.check()


def test_a_lease_is_renewed_while_it_is_held(folder):
    with Lease(folder, seconds=0.3) as lease:
        before = folder.head(LEASE)
        while folder.head(LEASE).etag == before.etag:
            time.sleep(0.02)
        lease.check()


def test_a_killed_process_of_this_machine_is_outlived_at_once(folder):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder.place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(StorageError, match=r"the other"), Lease(folder):
            pass
    finally:
        process.kill()
        process.communicate()
    with Lease(folder) as lease:
        lease.check()


def test_a_live_lease_of_another_machine_stands(folder):
    foreign(folder)
    with pytest.raises(StorageError, match=r"process 1 on far: c.*runs out 60 s after"), Lease(folder):
        pass


def test_a_lease_that_ran_out_is_taken_over(folder):
    before = foreign(folder, seconds=0.1)
    while time.time() < before.modified + 1.2:
        time.sleep(0.05)
    with Lease(folder) as lease:
        assert json.loads(folder.read_bytes(LEASE))["id"] == lease.id


def test_what_an_outlasted_holder_declared_is_never_forgotten(folder):
    with Lease(folder) as lease:
        assert lease.abandoned == []
        lease.declare(generation=1)
        assert json.loads(folder.read_bytes(LEASE))["work"] == {"generation": 1}
    with Lease(folder) as lease:
        assert lease.abandoned == [], "it was given back"
    before = foreign(folder, seconds=0.1, work={"generation": 2}, abandoned=[{"generation": 1}, "no work", None])
    while time.time() < before.modified + 1.2:
        time.sleep(0.05)
    for _ in range(2):
        with Lease(folder) as lease:
            assert lease.abandoned == [{"generation": 1}, {"generation": 2}]


def test_who_lost_the_lease_declares_nothing(folder):
    with Lease(folder) as lease:
        taken = foreign(folder)
        with pytest.raises(StorageError, match="taken over by another run"):
            lease.declare(generation=1)
    assert folder.head(LEASE).etag == taken.etag


def test_who_lost_the_lease_stops(folder):
    with Lease(folder, seconds=0.3) as lease:
        taken = foreign(folder)
        with pytest.raises(StorageError, match="taken over by another run"):  # noqa: PT012
            while True:
                lease.check()
                time.sleep(0.02)
    assert folder.head(LEASE).etag == taken.etag, "a lost lease is not given back"


def test_a_renewal_that_got_through_unheard_is_no_other_run(folder):
    with Lease(folder, seconds=0.3) as lease:
        said = json.loads(folder.read_bytes(LEASE)) | {"renewed": 0}
        unheard = folder.put_bytes(LEASE, json.dumps(said).encode())
        while folder.head(LEASE).etag == unheard.etag:
            lease.check()
            time.sleep(0.02)
        lease.check()
    assert json.loads(folder.read_bytes(LEASE))["released"]
