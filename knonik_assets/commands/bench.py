"""``knonik bench``: how fast a packed dataset loads here, what limits it, and what to change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from knonik_assets.commands.console import err, out, say, size
from knonik_assets.configs.documents import load_document
from knonik_loader.errors import ConfigError

if TYPE_CHECKING:
    from knonik_loader.throughput.measure import Measurement

__all__ = ["bench_command"]

_DEFAULTS = {
    "decode_mode": "random_access",
    "shuffle_mode": "global_triplet_fast",
    "chunk_len": 4,
    "batch_size": 32,
}


def bench_command(
    manifest: Annotated[str, typer.Argument(help="hlp_manifest.json of a packed dataset: a path or URL.")],
    config: Annotated[
        Path | None,
        typer.Option("--config", help="The training run's keys: a loader_cfg, or blocks 'loader' and 'streams'."),
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="How long batches are taken for.")] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Load batches at full speed; report rate, limiting stage, memory, and advice in words."""
    from knonik_loader.throughput.advice import advise
    from knonik_loader.throughput.measure import measure

    loader, streams = _blocks(config, manifest)
    with err.status("opening the dataset") if err.is_terminal and not quiet else _Silent() as status:

        def progress(share: float, batches: int, rate: float) -> None:
            status.update(f"{share:4.0%}  {batches} batches, {rate:.0f} pictures/s")

        run = measure(loader, streams, seconds, progress)
    advice = advise(run)
    if as_json:
        out.print_json(json.dumps({**run.to_dict(), "advice": advice}, default=str))
        return
    out.print(_table(run))
    for sentence in advice:
        say("advice", sentence, colour="cyan")
    if not advice:
        say("advice", "nothing to change: the loader keeps up with this machine.", colour="green")


class _Silent:
    """A status line where nobody watches."""

    def __enter__(self) -> _Silent:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, text: str) -> None:
        del text


def _blocks(config: Path | None, manifest: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(loader_cfg, stream_cfg) of a file that holds one or both, over the defaults of a plain run."""
    given = load_document(config) if config is not None else {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"{config} holds a {type(given).__name__}; a mapping of loader keys is wanted.")
    blocks = "loader" in given or "streams" in given
    unknown = sorted(set(given) - {"loader", "streams"}) if blocks else []
    if unknown:
        raise ConfigError(
            f"{config}: {unknown[0]!r} stands beside the blocks 'loader' and 'streams'; move it into one."
        )
    loader = given.get("loader") or {} if blocks else given
    streams = given.get("streams") or {} if blocks else {}
    for name, block in (("loader", loader), ("streams", streams)):
        if not isinstance(block, Mapping):
            raise ConfigError(f"{config}: block {name!r} holds a {type(block).__name__}; a mapping is wanted.")
    return {**_DEFAULTS, **loader, "hlp_manifest": manifest}, dict(streams)


def _table(run: Measurement) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    shown = {
        "dataset": f"{run.manifest} ({run.profile})",
        "rate": f"{run.samples_per_s:.0f} samples/s, {run.frames_per_s:.0f} pictures/s of {len(run.cameras)} cameras",
        "limit": f"{run.limit_frames_per_s:.0f} pictures/s, {run.limit_is}, {run.threads['decode']} threads",
        "of the limit": f"{run.of_limit:.2f}",
        "limited by": _limited_by(run),
        "batches": f"{run.batches} of {run.batch_size} samples in {run.seconds:.1f} s; first after "
        f"{run.first_batch_s:.2f} s; p50 {run.batch_p50_s * 1e3:.1f} ms, p99 {run.batch_p99_s * 1e3:.1f} ms",
        "memory": f"{size(run.rss_peak)} at most, {run.rss_end / run.rss_start - 1:+.1%} from first to last batch",
        "diversity": f"{run.episodes_per_batch:.1f} episodes a batch, {run.near_duplicates:.1%} near-duplicates",
    }
    for name, value in shown.items():
        table.add_row(name, value)
    return table


def _limited_by(run: Measurement) -> str:
    shares = ", ".join(f"{stage} {share:.0%}" for stage, share in run.busy.items())
    name = "no stage alone" if run.limiting == "waiting" else run.limiting
    return f"{name} (busy: {shares})"
