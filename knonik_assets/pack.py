"""Pack: a directory of episodes in, a KHLP dataset out, whole or not at all."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from knonik_assets.collecting import KEEP_DAYS, check_keep_days, collect_generations
from knonik_assets.configs.pack import PackMode, PackOptions
from knonik_assets.configs.validation import validate
from knonik_assets.engine import EngineName, check_call
from knonik_assets.episodes.metadata import METADATA
from knonik_assets.ingesting.progress import Progress
from knonik_assets.pack_run import PackRun
from knonik_assets.packing.episodes import open_episodes
from knonik_assets.packing.existing import REPORT
from knonik_assets.packing.plan import make_plan
from knonik_assets.packing.publish import paths_of
from knonik_assets.storage import Place, files
from knonik_loader import access
from knonik_loader.errors import ConfigError
from knonik_loader.khlp.types import StorageProfile

__all__ = ["REPORT", "pack"]

_log = logging.getLogger(__name__)


def pack(
    input_dir: str | Path,
    output_dir: str | Path,
    dataset_name: str,
    shard_size: int | None = None,
    window_size: int = 64,
    fps: float | None = None,
    seed: int = 0,
    pack_mode: PackMode = "shard_batch",
    storage_profile: StorageProfile = "compact_video",
    *,
    workers: int | None = None,
    engine: EngineName = "processes",
    streams: Sequence[str] | None = None,
    episodes: Sequence[str] | None = None,
    exclude: Mapping[str, str] | Sequence[str] | None = None,
    split: Mapping[str, float] | str | None = None,
    resize: Mapping[str, Sequence[int]] | Sequence[str] | None = None,
    codec: str | None = None,
    quality: int | None = None,
    gop: int | None = None,
    chroma: str | None = None,
    overwrite: bool = False,
    collect: bool = False,
    keep_days: float | None = None,
    ray_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> list[Path] | list[str]:
    """Pack ingested episodes. Unchanged input and options do nothing, a killed run goes on where it stopped.

    Args:
        input_dir: episodes, as ingest wrote them: a path, or an ``s3://``, ``gs://`` or ``az://`` URL; never changed.
        output_dir: where the manifest and the KHLP files go: a path or URL, too.
        dataset_name: the dataset's name in the manifest.
        shard_size: frames a shard at most; None: the hint of the episodes' preset, else 45.
        window_size: shards a KHLP file.
        fps: recorded, never resamples; None: the episodes' own.
        seed: of the shards' order and of the splits.
        pack_mode: ``shard_batch`` mixes the shards of all episodes, ``episode`` keeps episodes whole and in order.
        storage_profile: ``compact_video``, ``training_fast`` or ``training_compressed``.
        workers: files or shards worked on at once; None: one a core.
        engine: ``inline``, ``processes`` or ``ray``.
        streams: only these, with or without ``rgb_`` / ``depth_``.
        episodes: only these directories.
        exclude: all but these directories; as a dict, with the reasons.
        split: fractions by name, such as ``{"train": 0.9, "val": 0.1}``.
        resize: colour stream → (height, width), by area.
        codec: of ``compact_video``: ``h264``, ``vp9`` or ``av1``.
        quality: JPEG quality, or the CRF of ``compact_video``.
        gop: frames from one keyframe to the next.
        chroma: ``420`` or ``444``.
        overwrite: write a new generation beside the old one when anything changed.
        collect: afterwards remove generations that were superseded at least ``keep_days`` days ago, and log which;
            `knonik_assets.collecting.collect_generations` does the same on its own and returns them.
        keep_days: for ``collect``; None: 14.
        ray_options: for engine ``ray``, see `knonik_assets.engine.map_tasks`.
        progress: is told how far the run is.

    Returns:
        What was written, the manifest first, then the index and the KHLP files: paths, or URLs as text.

    Warns:
        UserWarning: what was packed is odd: another rate than the clocks, empty splits, values that are not finite.

    Raises:
        ConfigError: a mistake in the call; the output is untouched.
        PackError: the episodes don't agree, another dataset stands in ``output_dir``, or (at a URL) another run's
            manifest came first.
        EpisodeError: an episode is damaged.
        StorageError: the disk or store stands in the way, another run is writing there, or scratch space is too small.
        LoginRequired: an issuer is configured and there is no valid token.
    """
    access.require("ingest")
    given = {name: value for name, value in locals().items() if name in PackOptions.model_fields}
    options = validate(PackOptions, given, "pack options")
    check_call(engine, workers, ray_options=ray_options)
    if not isinstance(overwrite, bool):
        raise ConfigError(f"overwrite must be True or False, not {overwrite!r}.")
    keep = _keep_days(collect, keep_days)
    source, out = Place.of(input_dir, "input_dir"), Place.of(output_dir, "output_dir")
    _check_apart(source, out)
    began = time.monotonic()
    there = open_episodes(source)
    plan = make_plan(there.facts(options.episodes, options.exclude), options)
    run = PackRun(source, there, out, plan, engine, workers, ray_options, progress, overwrite=overwrite)
    # What is unchanged or refused is left alone entirely, so this looks before it locks, and once more behind the lock.
    manifest = run.unchanged() or run.write(began)
    for text in run.warnings:
        warnings.warn(text, UserWarning, stacklevel=2)
    if keep is not None:
        for removed in collect_generations(out, keep):
            _log.info("%s: removed %s", out, removed)
    paths = paths_of(out, manifest)
    return [str(path) for path in paths] if out.is_remote else [path.path for path in paths]


def _keep_days(collect: bool, keep_days: float | None) -> float | None:
    """Days to keep superseded generations for; None: nothing is collected."""
    if not isinstance(collect, bool):
        raise ConfigError(f"collect must be True or False, not {collect!r}.")
    if not collect:
        if keep_days is not None:
            raise ConfigError("keep_days says what collect may remove; it needs collect=True (--collect).")
        return None
    return KEEP_DAYS if keep_days is None else check_keep_days(keep_days)


def _check_apart(source: Place, out: Place) -> None:
    """Packing never writes into what it reads."""
    if not source.is_remote and not out.is_remote:
        source, out = Place(str(source.path.resolve())), Place(str(out.path.resolve()))
    if source == out:
        raise ConfigError(f"output_dir and input_dir are the same directory {out}; pack never writes into episodes.")
    folder = out
    while folder != folder.parent:
        if folder.parent == source and files.stat(folder / METADATA) is not None:
            raise ConfigError(f"output_dir {out} is inside the episode {folder}; name a directory outside of it.")
        folder = folder.parent
