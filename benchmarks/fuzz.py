"""100,000 damaged files, tables and payloads: each is refused with a typed error or read right, and nothing else.

The inputs are those of `tests.loader.khlp.fuzzing`. They are tried in child processes under a limit of memory, so that
a crash of a decoder, a hang or a huge allocation is a finding that names its input:

    python -m benchmarks.fuzz TARGET SEED FIRST COUNT

``KNONIK_FUZZ_INPUTS`` and ``KNONIK_FUZZ_SEED`` choose how many, and which.
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

SHARE = {"whole_file": 0.2, "forged_file": 0.15, "forged_index": 0.1, "forged_manifest": 0.05}
"""Parts of all inputs; the codecs share the rest equally."""
CHUNK = 2500
MEMORY = 1 << 30
"""Bytes that a child may allocate beyond what it has when it begins."""
HANG_S = 60


def run() -> list[Ratio]:
    """Try all inputs of every target."""
    from tests.loader.khlp.fuzzing import TARGETS

    total = int(os.environ.get("KNONIK_FUZZ_INPUTS", "100000"))
    seed = int(os.environ.get("KNONIK_FUZZ_SEED", "0"))
    rest = (1 - sum(SHARE.values())) / (len(TARGETS) - len(SHARE))
    return [_target(name, seed, max(1, round(total * SHARE.get(name, rest)))) for name in TARGETS]


def _target(name: str, seed: int, count: int) -> Ratio:
    refused = good = 0
    findings: list[str] = []
    with TemporaryDirectory() as folder:
        begin = 0
        while begin < count:
            chunk = min(CHUNK, count - begin)
            said = Path(folder) / "said"
            command = [sys.executable, "-m", "benchmarks.fuzz", name, str(seed), str(begin), str(chunk), str(said)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            lines = [json.loads(line) for line in said.read_text().splitlines()]
            refused += sum(line.get("outcome") == "refused" for line in lines)
            good += sum("outcome" in line for line in lines)
            findings += [f"input {line['input']}: {line['finding']}" for line in lines if "finding" in line]
            if done.returncode:  # the one behind the last that was finished took the process with it
                last = lines[-1]["input"] if lines else begin - 1
                findings.append(f"input {last + 1}: ended the process ({done.returncode}): {done.stderr[-800:]}")
                begin = last + 2
            else:
                begin += chunk
    for finding in findings:
        sys.stderr.write(f"{name}, seed {seed}, {finding}\n")
    detail = f"{refused} refused, {good - refused} read" + (f"; {findings[0][:200]}" if findings else "")
    return Ratio(f"{name}: refused or read right", f"{count} inputs", good / count, "= 1.00", detail)


def _child(name: str, seed: int, begin: int, count: int, said: Path) -> None:
    from tests.loader.khlp.fuzzing import outcome

    outcome(name, seed, begin)  # what is loaded and built once does not count
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, resource.RLIM_INFINITY))
    with said.open("w", buffering=1) as file:
        for number in range(begin, begin + count):
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            line: dict[str, object] = {"input": number}
            try:
                line["outcome"] = outcome(name, seed, number)
            except Exception:
                line["finding"] = traceback.format_exc(limit=-4)
            file.write(json.dumps(line) + "\n")
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    _child(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
