"""``python -m benchmarks [NAME ...]``: run all benchmarks, or those named."""

from __future__ import annotations

import sys
from collections.abc import Callable

from benchmarks import (
    codecs,
    cores,
    definitions,
    drills,
    fuzz,
    import_time,
    ingest_drill,
    ingesting,
    live,
    loader_soak,
    loading,
    mixing,
    mutations,
    orders,
    packing,
    peers,
    pipeline,
    planning,
    ray_drill,
    recordings,
    s3_storm,
    sources_memory,
    sources_rate,
    streams,
    torch_data,
    waits,
)
from benchmarks.common import Ratio, show

BENCHMARKS: dict[str, Callable[[], list[Ratio]]] = {
    "codecs": codecs.run,
    "cores": cores.run,
    "definitions": definitions.run,
    "import": import_time.run,
    "live": live.run,
    "loading": loading.run,
    "mixing": mixing.run,
    "mutations": mutations.run,
    "orders": orders.run,
    "packing": packing.run,
    "peers": peers.run,
    "pipeline": pipeline.run,
    "planning": planning.run,
    "ray_drill": ray_drill.run,
    "drills": drills.run,
    "ingest_drill": ingest_drill.run,
    "ingesting": ingesting.run,
    "sources_memory": sources_memory.run,
    "sources_rate": sources_rate.run,
    "torch_data": torch_data.run,
    "fuzz": fuzz.run,
    "loader_soak": loader_soak.run,
    "s3_storm": s3_storm.run,
    "recordings": recordings.run,
    "streams": streams.run,
    "waits": waits.run,
}


def main() -> int:
    names = sys.argv[1:] or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        sys.stderr.write(f"no benchmark called {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}\n")
        return 2
    for name in names:
        show(name, BENCHMARKS[name]())
    return 0


if __name__ == "__main__":
    sys.exit(main())
