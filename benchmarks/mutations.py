"""Damaged raw datasets, 500 a family: a typed error or a result, no hang, no huge allocation, no dead process.

``python -m benchmarks mutations`` tries every family; ``KNONIK_MUTATIONS_FAMILY`` names some of them,
``KNONIK_MUTATIONS`` says how many inputs, ``KNONIK_MUTATIONS_SEED`` which. The inputs are those of
`tests.support.mutations`, tried in child processes whose memory is bounded.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import subprocess
import sys
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.common import ROOT, Ratio

__all__ = ["run"]

MEMORY = 1 << 30
"""Bytes that a child may allocate beyond what it has when it begins."""
HANG_S = 10


def run(families: list[str] | None = None) -> list[Ratio]:
    """Try the inputs of every family, or of those named."""
    from tests.support.mutations import FAMILIES

    named = os.environ.get("KNONIK_MUTATIONS_FAMILY", "").split(",")
    chosen = families or [name for name in named if name] or list(FAMILIES)
    return [_family(name) for name in chosen]


def _family(name: str) -> Ratio:
    total = int(os.environ.get("KNONIK_MUTATIONS", "500"))
    seed = int(os.environ.get("KNONIK_MUTATIONS_SEED", "0"))
    lines: list[dict[str, object]] = []
    findings: list[str] = []
    with TemporaryDirectory() as folder:
        begin, said = 0, Path(folder) / "said"
        while begin < total:
            said.write_text("")
            command = [sys.executable, "-m", "benchmarks.mutations", name, str(seed), str(begin), str(total), str(said)]
            environment = {**os.environ, "TMPDIR": folder}
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
            told = [json.loads(line) for line in said.read_text().splitlines()]
            lines += told
            begin += len(told)
            if done.returncode == 0:
                break
            findings.append(f"input {begin}: ended the process ({done.returncode}): {done.stderr[-1500:]}")
            begin += 1
    findings += [f"input {line['input']}: {line['finding']}" for line in lines if "finding" in line]
    for finding in findings:
        sys.stderr.write(f"{name}, seed {seed}, {finding}\n")
    refused = sum(line.get("outcome") == "refused" for line in lines)
    good = sum("outcome" in line for line in lines)
    most = max((float(str(line["seconds"])) for line in lines), default=0.0)
    detail = f"{refused} refused, {good - refused} read, the slowest {most:.1f} s"
    return Ratio(f"{name}: refused or read", f"{total} inputs", good / total, "= 1.00", detail)


def _child(name: str, seed: int, begin: int, end: int, said: Path) -> None:
    import time

    from tests.support.mutations import outcome

    outcome(name, seed, begin)  # what is loaded and built once does not count
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, resource.RLIM_INFINITY))
    with said.open("w", buffering=1) as file:
        for number in range(begin, end):
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            line: dict[str, object] = {"input": number}
            started = time.process_time()
            try:
                line["outcome"] = outcome(name, seed, number)
            except Exception:
                line["finding"] = traceback.format_exc(limit=-6)
            line["seconds"] = time.process_time() - started
            file.write(json.dumps(line) + "\n")
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    _child(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
