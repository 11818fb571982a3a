"""How long importing the loader takes, against importing numpy and pydantic, each in fresh processes."""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.common import Ratio, alternate


def seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def run() -> list[Ratio]:
    bare, peers, loader = alternate(
        9, lambda: seconds(""), lambda: seconds("import numpy, pydantic"), lambda: seconds("import knonik_loader")
    )
    full = seconds("from knonik_loader import ShardedDataLoader")
    ratio = (loader - bare) / (peers - bare)
    detail = f"{1000 * (loader - bare):.0f} ms; with ShardedDataLoader {1000 * (full - bare):.0f} ms"
    return [Ratio("import knonik_loader", "import numpy, pydantic", ratio, "< 6", detail)]
