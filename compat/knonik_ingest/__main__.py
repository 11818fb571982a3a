"""``python -m knonik_ingest``."""

import sys

from knonik_assets.cli import packer_main

sys.exit(packer_main())
