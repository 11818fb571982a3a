"""What `knonik_assets.sources.detect` found, as tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from knonik_assets.sources.detect import Detection
from knonik_assets.sources.detect_config import rate_of
from knonik_assets.sources.families import Family

__all__ = ["render", "render_list"]


def render(found: Detection) -> Text:
    """One dataset: family, episodes, a table of its streams, what looks suspicious."""
    version = f" ({found.version})" if found.version else ""
    kind = f"dir_type {found.dir_type}" + (f", data_type {found.data_type}" if found.data_type is not None else "")
    lines = [f"{found.path}", f"  {found.family}{version}, {kind}"]
    if found.episodes is not None:
        lines.append(f"  {_episodes(found.episodes)}")
    if found.language is not None:
        lines.append(f"  told: {' '.join(found.language.split())}")
    if found.streams:
        lines.append("")
        rows = [("kind", "stream", "frames", "shape", "rate", "encoding", "role", "source")]
        for one in found.streams:
            shape = " x ".join(map(str, one["shape"]))
            encoding = one["encoding"] if one["kind"] != "numeric" else ""
            rows.append(
                (
                    one["kind"],
                    one["name"],
                    str(one["frames"]),
                    shape,
                    rate_of(one),
                    encoding,
                    one["role"] or "",
                    one["source"],
                )
            )
        lines += _table(rows)
    lines += ["", *(f"  ! {' '.join(warning.split())}" for warning in found.warnings)] if found.warnings else []
    return Text("\n".join(lines))


def render_list(families: Sequence[Family]) -> Text:
    """Several datasets, a line each."""
    rows = [("dataset", "family", "version", "episodes")]
    rows += [
        (one.where, one.name, one.version or "", "" if one.episodes is None else str(one.episodes)) for one in families
    ]
    return Text("\n".join(_table(rows)))


def _episodes(count: int) -> str:
    return f"{count} episode{'' if count == 1 else 's'}"


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    used = [place for place in range(len(rows[0])) if any(row[place] for row in rows[1:])]
    widths = {place: max(len(row[place]) for row in rows) for place in used}
    for row in rows:
        yield ("  " + "  ".join(row[place].ljust(widths[place]) for place in used)).rstrip()
