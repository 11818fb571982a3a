"""Datasets of a file an episode: ``episode_<n>.<suffix>`` in one folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from knonik_assets.sources.naming import natural_key
from knonik_loader.errors import SourceError

__all__ = ["episode_files"]


def episode_files(
    root: Path, suffixes: Sequence[str], hint: Callable[[list[str]], str], warnings: list[str]
) -> dict[str, Path]:
    """Stem → file of every ``episode_*`` with one of the suffixes, in natural order.

    Args:
        root: the folder.
        suffixes: with their dot.
        hint: what to do, given the names of files that have a suffix but another name.
        warnings: added to.

    Raises:
        SourceError: there is no such folder or no such file, or two files have one stem.
    """
    wanted = " or ".join(f"episode_*{suffix}" for suffix in suffixes)
    if not root.is_dir():
        raise SourceError(f"{root} is a file; give the folder that holds {wanted}.")
    named = [path for path in root.glob("episode_*") if path.suffix in suffixes]
    # a link to nothing is a recording that is missing: it fails by name when it is opened
    files = [path for path in named if path.is_file() or (path.is_symlink() and not path.exists())]
    if passed := sorted(path.name for path in set(named) - set(files)):
        warnings.append(f"{root}: {', '.join(passed[:5])}: no files, so passed over")
    if not files:
        others = sorted(path.name for path in root.iterdir() if path.suffix in suffixes)
        raise SourceError(f"{root}: no {wanted}; {hint(others)}.")
    found: dict[str, Path] = {}
    for path in sorted(files, key=lambda path: natural_key(path.name)):
        if path.stem in found:
            both = " and as ".join(suffixes)
            raise SourceError(f"{root}: {path.stem} is there both as {both}; remove one of them.")
        found[path.stem] = path
    return found
