"""What was found out about a file or folder, as lines for a terminal of 100 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from knonik_assets.packing.reports import Report

__all__ = ["render"]

_TITLES: Mapping[str, str] = {
    "khlp": "KHLP file",
    "manifest": "packed dataset",
    "index": "index of a packed dataset",
    "episode": "ingested episode",
    "episodes": "ingested episodes",
}
_HEADS = ("stream", "kind", "codec", "shape", "bytes", "of raw", "of JPEG", "PSNR-Y")
_RIGHT = frozenset({"bytes", "of raw", "of JPEG", "PSNR-Y"})


def render(report: Report) -> Text:
    """A report as lines to read; print it with ``soft_wrap``, so that long paths can be copied."""
    if report["kind"] == "raw":
        from knonik_assets.sources import detect_table
        from knonik_assets.sources.detect import Detection

        return detect_table.render(Detection(**report["detection"]))
    text = Text()
    text.append(f"{_TITLES[report['kind']]} ", "bold").append(f"{report['path']}\n")
    width = max(map(len, report["facts"]))
    for name, value in report["facts"].items():
        if value not in ("", {}):
            text.append(f"  {name:<{width}}  ", "dim").append(f"{_value(name, value)}\n")
    if report["streams"]:
        text.append("\n")
        for number, line in enumerate(_table(report["streams"])):
            text.append(f"{line}\n", "" if number else "dim")
        for line in _footnotes(report["samples"]):
            text.append(f"  {line}\n", "dim")
    if report["damage"]:
        text.append("\n")
        for what in report["damage"]:
            text.append("damaged: ", "bold red").append(f"{what}\n")
    text.rstrip()
    return text


def _footnotes(samples: Mapping[str, Any]) -> Iterator[str]:
    if samples.get("moments"):
        yield f"of JPEG: against {samples['jpeg']}, of {samples['moments']} sampled frames a camera"
    if samples.get("psnr_y"):
        yield f"PSNR-Y: the lowest, {samples['psnr_y']}"


def _value(name: str, value: object) -> str:
    if isinstance(value, dict):
        between = ": " if name == "fps" else " "
        return ", ".join(f"{key}{between}{item}" for key, item in value.items())
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int) and name != "seed":
        return _grouped(value) + (f" ({_size(value)})" if name == "bytes" and value >= 10_000 else "")
    return str(value)


def _grouped(value: int) -> str:
    return f"{value:,}".replace(",", " ")


def _size(value: float) -> str:
    units = ["kB", "MB", "GB", "TB"]
    value /= 1000
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        del units[0]
    return f"{value:.3g} {units[0]}"


def _table(streams: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    rows = [_HEADS, *(_cells(stream) for stream in streams)]
    used = [column for column in range(len(_HEADS)) if any(row[column] for row in rows[1:])]
    widths = [max(len(row[column]) for row in rows) for column in used]
    for row in rows:
        cells = (
            f"{row[column]:{'>' if _HEADS[column] in _RIGHT else '<'}{wide}}"
            for column, wide in zip(used, widths, strict=True)
        )
        yield ("  " + "  ".join(cells)).rstrip()


def _cells(stream: Mapping[str, Any]) -> tuple[str, ...]:
    share, jpeg, psnr = stream["of_raw"], stream["of_jpeg"], stream["psnr_y"]
    return (
        stream["key"],
        stream["kind"],
        stream["codec"],
        " x ".join(map(str, stream["shape"])),
        _grouped(stream["bytes"]),
        "" if share is None else f"{100 * share:.1f} %",
        "" if jpeg is None else f"{100 * jpeg:.0f} %",
        "equal" if stream["equal"] else "" if psnr is None else f"{psnr:.1f} dB",
    )
