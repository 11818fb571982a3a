"""Replay buffers: one Zarr store of many episodes, as diffusion policy and UMI write them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt

from knonik_assets.configs.ingest import IngestConfig
from knonik_assets.sources.array_episode import ArrayEpisode, Traits, no_layout
from knonik_assets.sources.array_facts import read_clock
from knonik_assets.sources.arrays import Array, DictTree, RowsOf
from knonik_assets.sources.arrays import Path as Place
from knonik_assets.sources.base import EpisodeRef, FingerprintCache
from knonik_assets.sources.naming import natural_key
from knonik_assets.sources.replay_videos import camera_files, cameras, video_array
from knonik_assets.sources.store_files import Files
from knonik_assets.sources.zarr_arrays import attributes, scan
from knonik_assets.sources.zarr_files import open_files
from knonik_loader.errors import EpisodeError, SourceError

__all__ = ["ReplayZarrSource"]

_ENDS = ("meta", "episode_ends")
_BUFFERS = ("replay_buffer.zarr", "replay_buffer.zarr.zip")
_MOST_EPISODES = 1 << 24


class ReplayZarrSource:
    """The episodes of ``data/*`` as ``meta/episode_ends`` parts them; cameras also in ``videos/`` beside the store."""

    format = "zarr"

    def __init__(self, config: IngestConfig, root: Path) -> None:
        self.config = config
        self.root = root
        self.warnings: list[str] = []

    def _store(self) -> Path:
        """The store: the root itself, its replay buffer, or the only store in it.

        Raises:
            SourceError: there is none, or more than one.
        """
        root = self.root
        if not root.exists():
            raise SourceError(f"{root}: there is no such file or folder.")
        if root.is_file() or (root / "meta" / "episode_ends").exists():
            return root
        for name in _BUFFERS:
            if (root / name).exists():
                return root / name
        found = sorted([*root.glob("*.zarr"), *root.glob("*.zarr.zip")], key=lambda path: natural_key(path.name))
        if len(found) == 1:
            return found[0]
        if found:
            raise SourceError(f"{root}: holds {len(found)} stores ({found[0].name}, …); name one of them as the input.")
        hint = 'for a store per episode use "dir_type": "episodic", "data_type": "zarr"'
        raise SourceError(f"{root}: no replay buffer: meta/episode_ends is missing, and no *.zarr is in it; {hint}.")

    def episodes(self) -> Sequence[EpisodeRef]:
        """See `Source.episodes`."""
        self.warnings = []
        store = self._store()
        try:
            with closing(open_files(store)) as files:
                ends = self._ends(files, store)
                lengths = {
                    ".".join(path[1:]): array.shape[0] for path, array in _data(files, store).items() if array.shape
                }
        except EpisodeError as error:
            raise SourceError(str(error)) from error
        total = ends[-1] if len(ends) else 0
        if longer := [name for name, length in lengths.items() if length > total]:
            self.warnings.append(
                f"{store}: rows behind the last episode's end at {total} belong to no episode (a recorder that was "
                f"stopped?) and are left out: {', '.join(longer[:8])}"
            )
        if not len(ends):
            raise SourceError(f"{store}: meta/episode_ends is empty: no episode was finished.")
        starts = [0, *(int(end) for end in ends[:-1])]
        return [
            EpisodeRef(str(place), (str(store), start, int(end), int(total)))
            for place, (start, end) in enumerate(zip(starts, ends, strict=True))
        ]

    def _ends(self, files: Files, store: Path) -> npt.NDArray[np.int64]:
        array = scan(files, str(store), "meta").get(("episode_ends",))
        if array is None:
            raise SourceError(f"{store}: meta/episode_ends is missing: where episodes end is not known.")
        if array.ndim != 1 or array.dtype.kind not in "iu" or array.shape[0] > _MOST_EPISODES:
            raise SourceError(
                f"{store}: meta/episode_ends is {array.dtype} of shape {array.shape}; wanted (N,) integers."
            )
        array.check_complete(numeric=False)
        ends = array.rows(0, array.shape[0]).astype(np.int64)
        if len(ends) and (ends[0] < 0 or (np.diff(ends) < 0).any()):
            raise SourceError(f"{store}: meta/episode_ends goes backwards: {ends[:8].tolist()} …; it is damaged.")
        return ends

    def fingerprint(self, ref: EpisodeRef, cache: FingerprintCache) -> str:
        """See `Source.fingerprint`."""
        with self.open(ref) as episode:
            return episode.digest()

    def open(self, ref: EpisodeRef) -> ArrayEpisode:
        """See `Source.open`."""
        path, start, stop, total = ref.locator
        store = Path(path)
        where = f"{store}, episode {ref.source_id}"
        files = open_files(store)
        try:
            warnings: list[str] = []
            arrays = self._arrays(files, store, (start, stop, total), where, warnings)
            arrays |= self._videos(store, int(ref.source_id), arrays, stop - start, where, warnings)
            stated = [attributes(files), attributes(files, "data"), attributes(files, "meta")]
        except BaseException:
            files.close()
            raise
        traits = Traits([level.get for level in stated], roles={"action": "action"})
        episode = ArrayEpisode(self.config, _DataTree(arrays), traits, where, files.close)
        episode.facts.warnings += warnings
        return episode

    def _arrays(
        self, files: Files, store: Path, span: tuple[int, int, int], where: str, warnings: list[str]
    ) -> dict[Place, Array]:
        """The episode's rows of every array over time: one that is far shorter than all episodes is a table."""
        start, stop, total = span
        whole = {path[1:]: array for path, array in _data(files, store).items()}
        if not whole:
            raise EpisodeError(f"{store}: there is no array in data/.")
        found: dict[Place, Array] = {}
        tables = []
        for path, array in whole.items():
            name = ".".join(path)
            length = array.shape[0] if array.shape else 0
            if length <= total // 2 and array.ndim <= 2:
                tables.append(f"{name} {array.shape}")
            elif length >= stop:
                found[path] = RowsOf(array, start, stop, f"{where}: {name}")
            else:
                raise EpisodeError(
                    f"{where}: {name} has {length} rows, but the episode ends at {stop}; the store is incomplete."
                )
        if tables:
            warnings.append(f"{where}: left out, as their first axis isn't time: {', '.join(tables)}")
        return found

    def _videos(
        self, store: Path, episode: int, arrays: dict[Place, Array], length: int, where: str, warnings: list[str]
    ) -> dict[Place, Array]:
        folder = next((at / "videos" for at in (self.root, store.parent) if (at / "videos").is_dir()), None)
        if folder is None or not length:
            return {}
        files = camera_files(folder, episode)
        if lacking := [name for name in cameras(folder) if name not in files]:
            warnings.append(f"{where}: {folder / str(episode)} has no video of {', '.join(lacking)}")
        if not no_layout(self.config):
            keys = {entry.key.replace("/", ".") for entry in (self.config.layout.images or {}).values()}
            files = {name: path for name, path in files.items() if not keys.isdisjoint((name, f"videos.{name}"))}
        rate, stamps = self.config.fps, arrays.get(("timestamp",))
        times = None if stamps is None else read_clock(stamps, rate, False, warnings)
        return {
            ("videos", name): video_array(path, times, length, rate, f"{where}: {path.name}", warnings)
            for name, path in files.items()
        }


def _data(files: Files, store: Path) -> dict[Place, Array]:
    return {("data", *path): array for path, array in scan(files, str(store), "data").items()}


class _DataTree(DictTree):
    """Keys with and without ``data`` in front; cameras with and without ``videos``."""

    def find(self, key: str) -> tuple[Place, Array] | None:
        """See `Tree.find`."""
        plain = key.strip("/").replace("/", ".")
        return super().find(key) or super().find(plain.removeprefix("data.")) or super().find(f"videos.{plain}")
