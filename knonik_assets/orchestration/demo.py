"""``python -m knonik_assets.orchestration.demo``: the whole road for one dataset card, and what comes out at its end.

Everything runs through the Dagster instance of ``DAGSTER_HOME``, so the UI shows afterwards what happened here.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dagster as dg
from rich import box
from rich.console import Console
from rich.table import Table

from knonik_assets.configs.card import DatasetCard, card_folder
from knonik_assets.configs.cards import scan_cards
from knonik_assets.orchestration.automation import BUILD_JOB
from knonik_assets.orchestration.definitions import build_definitions
from knonik_assets.orchestration.demo_loading import Loaded, bare_jpeg_rate, load, sample_jpegs, save_strip
from knonik_assets.orchestration.inputs import run_tags
from knonik_assets.quality.finding import size_text
from knonik_loader.errors import KnonikError

__all__ = ["main"]

_SHOWN = {
    "raw_dataset": ("episodes", "size", "source_format"),
    "ingested_episodes": ("episodes", "frames", "size", "bad_episodes"),
    "dataset_config": ("config",),
}
_SHOWN_PACKED = ("episodes", "frames", "size", "compression")


def main(arguments: Sequence[str] | None = None) -> int:
    """Materialise a card and load from what was packed; returns the exit status."""
    parser = argparse.ArgumentParser(prog="make demo", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dataset", default="aloha_sim", help="name of a dataset card (default: %(default)s)")
    name = parser.parse_args(arguments).dataset
    console = Console(width=max(100, min(Console().width, 130)), soft_wrap=True)
    home = Path(os.environ.setdefault("DAGSTER_HOME", str(Path("dagster_home").resolve())))
    if not home.is_dir():
        console.print(
            f"[bold red]error:[/] DAGSTER_HOME is {home}, which is no folder; run from the repository's root."
        )
        return 2
    try:
        card = scan_cards(card_folder()).card(name)
        console.print(f"[bold]{card.name}[/]: {card.description}")
        console.print(f"raw recordings in {card.raw}, card in {_short(card.path)}\n", highlight=False)
        return _run(card, console)
    except KnonikError as error:
        console.print(f"[bold red]error:[/] {error}", highlight=False)
        return error.exit_code


def _run(card: DatasetCard, console: Console) -> int:
    console.print(
        "[bold]1. Dagster materialises the dataset[/] (unchanged episodes and packs are kept)", highlight=False
    )
    if not _materialise(card, console):
        console.print("\n[bold red]The run failed.[/] 'make ui' shows it with every log line.")
        return 1
    if not card.profiles:
        console.print(f"\n{card.name} asks for no packed profile, so there is nothing to load.")
        return 0
    console.print("\n[bold]2. A loader reads training batches from each packed dataset[/]", highlight=False)
    jpegs = sample_jpegs(card)
    # each loader beside a measurement of the limit, as machines don't keep one speed
    measured = [(load(card, profile), bare_jpeg_rate(jpegs)) for profile in card.profiles]
    loaded = [one for one, _ in measured]
    _print_batch(loaded, console)
    _print_rates(measured, console)
    beside = card.path.parent if card.packed.is_remote else card.packed.path.parent
    strip = save_strip(loaded[0].batch, beside / "demo_batch.png")
    if strip is not None:
        console.print(f"\nFilm strip of a loaded batch: [bold]{_short(strip)}[/]", highlight=False)
    console.print(
        "Next: [bold]make ui[/] shows these runs, checks and pictures on http://127.0.0.1:3000", highlight=False
    )
    return 0


def _materialise(card: DatasetCard, console: Console) -> bool:
    definitions = dg.Definitions.merge(
        build_definitions(card.path.parent), dg.Definitions(loggers={"story": _story(console)})
    )
    with dg.DagsterInstance.get() as instance:
        result = definitions.resolve_job_def(BUILD_JOB).execute_in_process(
            instance=instance,
            partition_key=card.name,
            raise_on_error=False,
            run_config={"loggers": {"story": {}}},  # in place of Dagster's own, which prints every event
            tags=run_tags(card),
        )
    return bool(result.success)


def _story(console: Console) -> dg.LoggerDefinition:
    """A logger that tells a run's story in a few lines instead of printing every event."""

    @dg.logger(config_schema={}, description="The story of the run for people.")
    def story(init_context: dg.InitLoggerContext) -> logging.Logger:
        del init_context
        logger = logging.getLogger("knonik.demo")
        logger.handlers = [_StoryHandler(console)]
        logger.setLevel(logging.DEBUG)  # Dagster reports what was materialised at this level
        logger.propagate = False
        return logger

    return story


class _StoryHandler(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__(logging.DEBUG)
        self._console = console
        self._asset = ""

    def emit(self, record: logging.LogRecord) -> None:
        meta: dict[str, Any] = getattr(record, "dagster_meta", {})
        event: dg.DagsterEvent | None = meta.get("dagster_event")
        if event is None:
            if record.levelno >= logging.WARNING:
                self._say(f"    [yellow]![/] {meta.get('orig_message', record.getMessage())}")
        elif event.is_step_materialization:
            self._materialised(event)
        elif event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            check = event.asset_check_evaluation_data
            self._heading(check.asset_key.to_user_string())
            mark = "[green]✓[/]" if check.passed else "[yellow]![/]" if check.severity.value == "WARN" else "[red]✗[/]"
            self._say(f"    {mark} {check.check_name}: [dim]{check.description}[/]")
        elif event.event_type is dg.DagsterEventType.STEP_FAILURE:
            failure = event.step_failure_data
            why = failure.user_failure_data.description if failure.user_failure_data else None
            self._say(f"  [red]✗[/] {event.step_key}: {why or failure.error_display_string.strip().splitlines()[0]}")

    def _materialised(self, event: dg.DagsterEvent) -> None:
        made = event.step_materialization_data.materialization
        name = made.asset_key.to_user_string()
        facts = [
            f"{key.replace('_', ' ')} {_fact(made.metadata[key].value)}"
            for key in _SHOWN.get(name, _SHOWN_PACKED)
            if key in made.metadata
        ]
        self._say(f"  [bold green]●[/] [bold]{name}[/]  {', '.join(facts)}")
        self._asset = name

    def _heading(self, asset: str) -> None:
        """Say whose checks follow, where they don't follow their asset."""
        if asset != self._asset:
            self._say(f"  [bold]{asset}[/]")
            self._asset = asset

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False)


def _fact(value: Any) -> str:  # noqa: ANN401 - any metadata
    if isinstance(value, str) and value.startswith("/"):
        return _short(Path(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _print_batch(loaded: Sequence[Loaded], console: Console) -> None:
    for index, one in enumerate(loaded):
        same = [other.profile for other in loaded[index + 1 :] if other.shapes == one.shapes]
        if any(one.shapes == other.shapes for other in loaded[:index]):
            continue
        names = " (and of ".join([one.profile, ", ".join(same) + ")"]) if same else one.profile
        table = Table(title=f"a batch of {names}", box=box.SIMPLE_HEAD, title_justify="left", title_style="")
        for column in ("key", "type", "shape or value"):
            table.add_column(column)
        masks = [key for key in one.shapes if key.endswith("_valid_mask")]
        for key, (kind, shape) in one.shapes.items():
            if key not in masks:
                table.add_row(key, kind, shape)
            elif key == masks[0]:
                table.add_row("<stream>_valid_mask", kind, f"{shape} (False where a window leaves its episode)")
        console.print(table)


def _print_rates(measured: Sequence[tuple[Loaded, float]], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("packed as", no_wrap=True)
    for column in ("size", "a picture", "pictures/s", "bare JPEG decoding/s", "ratio"):
        table.add_column(column, justify="right")
    for one, bare in measured:
        size = size_text(one.bytes / max(one.pictures, 1))
        table.add_row(
            one.profile, size_text(one.bytes), size, f"{one.rate:.0f}", f"{bare:.0f}", f"{one.rate / bare:.2f}"
        )
    console.print(table)
    console.print(
        "Bare JPEG decoding is what this machine can do at best with the same pictures: two threads, no loader,\n"
        "memory reused. The loaders decode with two threads too. Each pair was measured one right after the other.",
        highlight=False,
    )
    console.print("\nThe manifests, which are all that a training job needs to know:")
    for one, _ in measured:
        console.print(f"  {one.manifest if one.manifest.is_remote else _short(one.manifest.path)}", highlight=False)


def _short(path: Path) -> str:
    """Relative to the working directory where it lies below."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


if __name__ == "__main__":
    sys.exit(main())
