"""Bounds under which hostile data has to be refused."""

import resource
from contextlib import contextmanager
from pathlib import Path

GIGABYTE = 1 << 30


@contextmanager
def little_memory(more: int = GIGABYTE):
    """Allocations of the block beyond what the process has now, and more, fail with a MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
