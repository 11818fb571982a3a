"""Versions of what judging does; importing them costs nothing, so that the asset graph can name them."""

__all__ = ["FRAMES_VERSION", "ROWS_VERSION", "SUITE_VERSION"]

ROWS_VERSION = 5
"""Counted up when episodes are measured differently, so that remembered rows are measured again."""

SUITE_VERSION = 3
"""Counted up when the expectations ask differently, so that remembered answers are asked for again."""

FRAMES_VERSION = 1
"""Counted up when frames are measured or asked differently, so that remembered answers are asked for again."""
