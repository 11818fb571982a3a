"""``python -m benchmarks [NAME ...]``: run all benchmarks, or those named."""

from __future__ import annotations

import sys
from collections.abc import Callable

    "packing": packing.run,
