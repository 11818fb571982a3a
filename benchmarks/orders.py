"""One order, whatever the topology, in full: every combination of what must not matter gives the same batches.

Workers {1, 2, 7} x ranks {1, 2, 4, 8} at an equal global batch x local or S3 x prefetch {0, 2, 8} x copied or zero-copy
x ``global_triplet`` or ``_fast``; then resuming from before every batch of two epochs, as other ranks and workers, from
the other storage. Every value of every batch is compared. ``KNONIK_ORDER_PROFILES``: comma-separated, default all.
"""

from __future__ import annotations

import itertools
import logging
import os
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.common import Ratio

WORKERS, RANKS, AHEAD = (1, 2, 7), (1, 2, 4, 8), (0, 2, 8)
GLOBAL_BATCH = 8
LENGTHS = (60, 42, 11)
"""Windows of 4 leave 104 anchors, 13 whole global batches: a partial one is not split alike by all numbers of ranks."""
SIZE = (32, 48)


@contextmanager
def served(folder: Path, bucket: str) -> Iterator[dict[str, Any]]:
    """The files of a folder in a bucket; gives ``fs_params``."""
    from moto.server import ThreadedMotoServer

    os.environ.setdefault("AWS_ACCESS_KEY_ID", "x")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "y")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        urllib.request.urlopen(urllib.request.Request(f"{url}/{bucket}", method="PUT"), timeout=30).close()
        for path in folder.iterdir():
            if path.is_file():
                request = urllib.request.Request(f"{url}/{bucket}/{path.name}", data=path.read_bytes(), method="PUT")
                request.add_header("Content-Type", "application/octet-stream")
                urllib.request.urlopen(request, timeout=30).close()
        yield {"endpoint_url": url, "region": "us-east-1", "bucket": bucket}
    finally:
        server.stop()


def loaders(config: Mapping[str, Any], ranks: int) -> list[Any]:
    """One loader for each rank of a job."""
    from knonik_loader import ShardedDataLoader

    part = {"batch_size": GLOBAL_BATCH // ranks, "world_size": ranks}
    return [ShardedDataLoader({**config, **part, "rank": rank}) for rank in range(ranks)]


def differing(config: Mapping[str, Any], ranks: int, expected: list[Any]) -> str | None:
    """What of a pass is not as expected; None: nothing."""
    from knonik_loader.testing import _check, _joined

    made = loaders(config, ranks)
    try:
        if {len(loader) for loader in made} != {len(expected)}:
            return f"{[len(loader) for loader in made]} batches, not {len(expected)}"
        for number, (found, wanted) in enumerate(zip(_joined(made), expected, strict=False)):
            _check(found, wanted, f"batch {number}")
    except AssertionError as error:
        return str(error)
    finally:
        for loader in made:
            loader.shutdown()
    return None


def one_order(profile: str, base: Mapping[str, Any], remote: Mapping[str, Any], slots: Mapping[str, Any]) -> Ratio:
    """All combinations against a pass of one worker and one rank."""
    from knonik_loader.testing import _joined

    (first,) = loaders({**base, "num_decoders": 1, "precollate_batches": 0}, 1)
    with first:
        expected = list(itertools.islice(_joined([first]), len(first)))
    equal = total = 0
    wrong = ""
    modes = ("global_triplet", "global_triplet_fast")
    for workers, ranks, store, ahead, memory, mode in itertools.product(
        WORKERS, RANKS, ({}, remote), AHEAD, ({}, slots), modes
    ):
        keys = {"num_decoders": workers, "precollate_batches": ahead, "shuffle_mode": mode, **store, **memory}
        found = differing({**base, **keys}, ranks, expected)
        total += 1
        equal += found is None
        if found and not wrong:
            wrong = f"{keys} on {ranks} ranks: {found}"
    detail = wrong or f"{total} combinations of {len(expected)} batches"
    return Ratio(f"{profile}: one order", "one worker, one rank", equal / total, "1.00", detail)


def resumes(profile: str, base: Mapping[str, Any], remote: Mapping[str, Any], slots: Mapping[str, Any]) -> Ratio:
    """From before every batch of two epochs, as other ranks with other workers."""
    from knonik_loader.testing import assert_resume_equivalent

    # batches, states and comparisons: those of the run that goes on are the whole rest of the two epochs
    equal = total = 0
    wrong = ""
    for ranks, workers, store, memory in zip(
        RANKS, (7, 1, 2, 1), ({}, remote, remote, {}), (slots, {}, slots, {}), strict=True
    ):
        total += 1
        after = {**base, "num_decoders": workers, "precollate_batches": ranks % 3, **store, **memory}
        try:
            assert_resume_equivalent(
                lambda: loaders({**base, "num_decoders": 2}, 1)[0],
                lambda after=after, ranks=ranks: loaders(after, ranks),
                epochs=2,
            )
            equal += 1
        except AssertionError as error:
            wrong = wrong or f"{ranks} ranks, {workers} workers: {error}"
    detail = wrong or f"from each of 27 states, to the end, on {', '.join(map(str, RANKS))} ranks"
    return Ratio(f"{profile}: resumed", "the run without a break", equal / total, "1.00", detail)


def run() -> list[Ratio]:
    from tests.support.packed import PROFILES, write_packed

    rows = []
    for profile in os.environ.get("KNONIK_ORDER_PROFILES", ",".join(PROFILES)).split(","):
        with tempfile.TemporaryDirectory() as folder:
            packed = write_packed(Path(folder), LENGTHS, profile, size=SIZE, depth=False)
            with served(packed.folder, profile.replace("_", "-")) as params:
                base = packed.config()
                remote = {"fs_type": "s3", "fs_params": params, "hlp_manifest": packed.manifest.name}
                shapes = {f"rgb_{name}": [*SIZE, 3] for name in camera_names(packed.manifest)}
                slots = {"zerocopy": True, "zerocopy_frame_shapes": shapes}
                rows += [one_order(profile, base, remote, slots), resumes(profile, base, remote, slots)]
    return rows


def camera_names(manifest: Path) -> list[str]:
    from knonik_loader.khlp.manifest import load_manifest

    streams = load_manifest(manifest.read_bytes(), "").streams
    return [stream.info().key.removeprefix("rgb_") for stream in streams if stream.kind == "rgb"]
