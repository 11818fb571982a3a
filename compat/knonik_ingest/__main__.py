"""``python -m knonik_ingest``."""

import sys

from knonik_assets.entry import packer

sys.exit(packer())
