"""Ingest and pack from Python."""

from knonik_assets.ingest import run
from knonik_assets.live.protocol import run_live
from knonik_assets.live.session import live_session
from knonik_assets.pack import pack

__all__ = ["live_session", "pack", "run", "run_live"]
