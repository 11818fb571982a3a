"""A minute (``KNONIK_STORM_S``) of loading from S3 while the network misbehaves: every batch is the one of a calm run.

``SHARES`` says how many requests meet each fault. A body that is damaged time after time is an error, as it should be:
wrong and short ones are therefore rarer.
"""

from __future__ import annotations

import logging
import os
import random
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Ratio

SHARES = {"503": 0.3, "reset": 0.1, "cut": 0.1, "short": 0.02, "wrong": 0.02}


def storm(fault: str, share: float) -> Callable[[object], str | None]:
    generator, lock = random.Random(1), threading.Lock()

    def pick(_: object) -> str | None:
        with lock:
            return fault if generator.random() < share else None

    return pick


def stall(url: str, config: Callable[..., dict]) -> Ratio:
    """Seconds that `shutdown` takes while no request for a payload is ever answered, and what is left after it."""
    from knonik_loader import ShardedDataLoader
    from tests.support.proxy import FaultyProxy

    stalled = threading.Event()

    def pick(request: Any) -> str | None:
        if not request.path.endswith(".khlp"):
            return None
        stalled.set()
        return "stall"

    seconds, left = [], 0
    for _ in range(5):
        stalled.clear()
        with FaultyProxy(url, pick) as proxy:
            loader = ShardedDataLoader(config(proxy.url))
            iterator = iter(loader)
            stalled.wait(60)
            began = time.perf_counter()
            loader.shutdown()
            seconds.append(time.perf_counter() - began)
            left += sum(thread.name.startswith("knonik-") for thread in threading.enumerate())
            del iterator
    detail = f"longest of {len(seconds)}; {left} threads left, nothing answered"
    return Ratio("shutdown while S3 stalls", "seconds", max(seconds), "< 5", detail)


def run() -> list[Ratio]:
    from moto.server import ThreadedMotoServer

    from knonik_loader import ShardedDataLoader
    from tests.support.packed import write_packed
    from tests.support.proxy import FaultyProxy

    seconds = float(os.environ.get("KNONIK_STORM_S", "60"))
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "x")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "y")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        packed = write_packed(Path(folder), (200, 150, 90), size=(96, 96), depth=False)
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        urllib.request.urlopen(urllib.request.Request(f"{url}/bkt", method="PUT"), timeout=30).close()
        for path in packed.folder.iterdir():
            request = urllib.request.Request(f"{url}/bkt/{path.name}", data=path.read_bytes(), method="PUT")
            request.add_header("Content-Type", "application/octet-stream")
            urllib.request.urlopen(request, timeout=30).close()

        def behind(url: str) -> dict[str, Any]:
            params = {"endpoint_url": url, "region": "us-east-1", "bucket": "bkt"}
            keys = {"batch_size": 8, "max_steps": 1_000_000, "hlp_manifest": "hlp_manifest.json"}
            return packed.config(fs_type="s3", fs_params=params, **keys)

        rows.append(stall(url, behind))
        for fault, share in SHARES.items():
            with FaultyProxy(url, storm(fault, share)) as proxy:
                remote = behind(proxy.url)
                equal = count = 0
                with (
                    ShardedDataLoader(remote) as loader,
                    ShardedDataLoader(packed.config(batch_size=8, max_steps=1_000_000)) as calm,
                ):
                    deadline = time.monotonic() + seconds
                    for one, other in zip(loader, calm, strict=True):
                        count += 1
                        arrays = [key for key, value in other.items() if isinstance(value, np.ndarray)]
                        equal += all(np.array_equal(one[key], other[key]) for key in arrays)
                        if time.monotonic() > deadline:
                            break
                detail = f"{count} batches, {proxy.count(fault)} faults in {len(proxy.requests)} requests"
                rows.append(
                    Ratio(f"{fault}, {share:.0%} of requests", "batches of a calm run", equal / count, "1.00", detail)
                )
        server.stop()
    return rows
