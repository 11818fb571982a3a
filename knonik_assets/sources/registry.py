"""Which reader reads what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from knonik_assets.configs.ingest import IngestConfig
from knonik_assets.sources.base import Source
from knonik_assets.storage import Place
from knonik_loader.errors import ConfigError

__all__ = ["READABLE", "open_source"]


def _hdf5(config: IngestConfig, root: Path) -> Source:
    from knonik_assets.sources.episodic_hdf5 import EpisodicHdf5Source

    return EpisodicHdf5Source(config, root)


def _lerobot_v2(config: IngestConfig, root: Path) -> Source:
    from knonik_assets.sources.lerobot_v2 import LeRobotV2Source

    return LeRobotV2Source(config, root)


def _lerobot_v3(config: IngestConfig, root: Path) -> Source:
    from knonik_assets.sources.lerobot_v3 import LeRobotV3Source

    return LeRobotV3Source(config, root)


def _episodic_zarr(config: IngestConfig, root: Path) -> Source:
    from knonik_assets.sources.episodic_zarr import EpisodicZarrSource

    return EpisodicZarrSource(config, root)


def _replay_zarr(config: IngestConfig, root: Path) -> Source:
    from knonik_assets.sources.replay_zarr import ReplayZarrSource

    return ReplayZarrSource(config, root)


def _npz(config: IngestConfig, root: Path) -> Source:
    from knonik_assets.sources.episodic_npz import EpisodicNpzSource

    return EpisodicNpzSource(config, root)


def _calvin(config: IngestConfig, root: Path) -> Source:
    from knonik_assets.sources.calvin import CalvinSource

    return CalvinSource(config, root)


def _staged(config: IngestConfig, root: Path) -> Source:
    from knonik_assets.sources.npy_separate import StagedSource

    return StagedSource(config, root)


def _ros(config: IngestConfig, root: Path) -> Source:
    from knonik_assets.sources.ros.source import RosSource

    return RosSource(config, root)


def _d3il(config: IngestConfig, root: Path) -> Source:
    from knonik_assets.sources.d3il import D3ilSource

    return D3ilSource(config, root)


def _rlds(config: IngestConfig, root: Path) -> Source:
    from knonik_assets.sources.rlds import RldsSource

    return RldsSource(config, root)


READABLE: Mapping[str, Callable[[IngestConfig, Path], Source]] = {
    "episodic + hdf5": _hdf5,
    "episodic + npy": _npz,
    "episodic + zarr": _episodic_zarr,
    "calvin": _calvin,
    "d3il": _d3il,
    "hdf5": _hdf5,
    "lerobot_v2": _lerobot_v2,
    "npy_separate": _staged,
    "rlds": _rlds,
    "zarr": _replay_zarr,
    "lerobot_v3": _lerobot_v3,
    "rosbag": _ros,
    "mcap": _ros,
}
"""Reader by ``dir_type``, with ``data_type`` behind a plus sign for ``episodic``."""


def open_source(config: IngestConfig, root: str | Path | Place) -> Source:
    """The reader for a config, over the raw dataset at ``root``, a path or a URL. Opens nothing yet.

    Raises:
        ConfigError: this version has no such reader, or the URL is none.
    """
    family = config.dir_type
    if family == "episodic":
        if config.data_type is None:
            raise ConfigError("dir_type 'episodic' needs a data_type: hdf5, npy or zarr.")
        family = f"episodic + {config.data_type}"  # type: ignore[assignment]
    reader = READABLE.get(family)
    if reader is None:
        raise ConfigError(f"this version cannot read {family!r} yet; it reads: {', '.join(READABLE)}.")
    place = Place.of(root, "input")
    if place.is_remote:
        from knonik_assets.sources.remote.source import RemoteSource

        return RemoteSource(config, place, reader)
    return reader(config, place.path)
