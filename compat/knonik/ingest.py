"""Detect, ingest, capture and pack from Python."""

from knonik_assets.ingest import run
from knonik_assets.live.protocol import run_live
from knonik_assets.live.session import live_session
from knonik_assets.pack import pack
from knonik_assets.sources.detect import detect

__all__ = ["detect", "live_session", "pack", "run", "run_live"]
