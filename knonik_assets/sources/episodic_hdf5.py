"""HDF5 episodes: a file each (ALOHA and its kin), or demos nested in files (robomimic, LIBERO)."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import av
import h5py
import numpy as np
import numpy.typing as npt

from knonik_assets.configs.ingest import IngestConfig
from knonik_assets.sources.base import EncodedImage, EpisodeFacts, EpisodeRef, FingerprintCache, Frame, StreamSpec
from knonik_assets.sources.hdf5_facts import (
    aloha_compressed,
    control_rate,
    language,
    read_clock,
    stored_upside_down,
)
from knonik_assets.sources.hdf5_layout import Planned, clock_dataset, plan_streams
from knonik_assets.sources.hdf5_paths import match_groups, open_hdf5, reading
from knonik_assets.sources.hdf5_streams import hash_dataset, read_rows
from knonik_assets.sources.images import Turner, decode_depth, depth_to_m, to_rgb, turn
from knonik_assets.sources.naming import natural_key, renamed
from knonik_loader.errors import EpisodeError, SourceError

__all__ = ["EpisodicHdf5Source", "Hdf5Episode"]

_SUFFIXES = (".h5", ".hdf5")
_EXCHANGED = (
    "red and blue are probably exchanged, as ALOHA's recorder gives RGB pictures to an encoder that expects BGR; look "
    "at a frame and say jpeg_channel_order: bgr, or rgb if they are right"
)
_UPSIDE_DOWN = (
    "pictures are stored upside down (macros_image_convention is 'opengl'); "
    'set "orientation": "flip_vertical" or "rotate_180" to turn them'
)


class EpisodicHdf5Source:
    """Every ``episode_*.h5|hdf5`` of a folder, or with ``demos`` every matching group of every HDF5 file below it."""

    format = "hdf5"

    def __init__(self, config: IngestConfig, root: Path) -> None:
        self.config = config
        self.root = root
        self.warnings: list[str] = []
        self.demos = config.demos or ("data/demo_*" if config.dir_type == "hdf5" else None)

    def __getstate__(self) -> dict[str, object]:
        return dict(self.__dict__)

    def episodes(self) -> Sequence[EpisodeRef]:
        """See `Source.episodes`."""
        self.warnings = []
        if not self.root.exists():
            raise SourceError(f"{self.root}: there is no such folder.")
        return self._demos(self.demos) if self.demos is not None else self._files()

    def _files(self) -> list[EpisodeRef]:
        if not self.root.is_dir():
            raise SourceError(f"{self.root} is a file; give the folder that holds episode_*.h5 or episode_*.hdf5.")
        named = [path for path in self.root.glob("episode_*") if path.suffix in _SUFFIXES]
        # a link to nothing is a recording that is missing: it fails by name when it is opened
        files = [path for path in named if path.is_file() or (path.is_symlink() and not path.exists())]
        if passed := sorted(path.name for path in set(named) - set(files)):
            self.warnings.append(f"{self.root}: {', '.join(passed[:5])}: no files, so passed over")
        if not files:
            others = sorted(path.name for path in self.root.iterdir() if path.suffix in _SUFFIXES)
            hint = (
                f'it has {others[0]} …: for demos nested in a file add "demos": "data/demo_*"'
                if others
                else "no HDF5 file is in it"
            )
            raise SourceError(f"{self.root}: no episode_*.h5 or episode_*.hdf5; {hint}.")
        refs: dict[str, EpisodeRef] = {}
        for path in sorted(files, key=lambda path: natural_key(path.name)):
            if path.stem in refs:
                raise SourceError(f"{self.root}: {path.stem} is there both as .h5 and as .hdf5; remove one of them.")
            refs[path.stem] = EpisodeRef(path.stem, (str(path), ""))
        return list(refs.values())

    def _demos(self, pattern: str) -> list[EpisodeRef]:
        base = self.root if self.root.is_dir() else self.root.parent
        files = [self.root] if self.root.is_file() else [p for p in self.root.rglob("*") if _is_hdf5(p, self.root)]
        refs: list[EpisodeRef] = []
        seen: list[str] = []
        upside_down = 0
        fixed = sum(1 for step in pattern.strip("/").split("/") if not set(step) & set("*?["))
        for path in sorted(files, key=lambda path: natural_key(path.relative_to(base).as_posix())):
            name = path.relative_to(base).as_posix()
            try:
                with open_hdf5(path) as file, reading(str(path)):
                    groups = match_groups(file, pattern)
                    seen += sorted(file)
                    upside_down += stored_upside_down(file, file)
            except EpisodeError as error:
                self.warnings.append(str(error))
                refs.append(EpisodeRef(name, (str(path), None)))
                continue
            refs += [
                EpisodeRef(f"{name}#{'/'.join(group[min(fixed, len(group) - 1) :])}", (str(path), "/".join(group)))
                for group in groups
            ]
        if not refs:
            what = f"their top groups are {', '.join(sorted(set(seen))[:12])}" if seen else "no HDF5 file is there"
            raise SourceError(f"{self.root}: nothing matches demos {pattern!r}; {what}.")
        if upside_down and self.config.orientation == "as_stored":
            self.warnings.append(f"{self.root}: {_UPSIDE_DOWN}")
        return refs

    def fingerprint(self, ref: EpisodeRef, cache: FingerprintCache) -> str:
        """See `Source.fingerprint`. A demo's covers its own streams, a file's the whole file."""
        path, group = ref.locator
        if group == "":
            return cache.file_digest(Path(path))
        with self.open(ref) as episode:
            return episode.digest()

    def open(self, ref: EpisodeRef) -> Hdf5Episode:
        """See `Source.open`."""
        path, group = ref.locator
        return Hdf5Episode(self.config, Path(path), group, ref.source_id)


def _is_hdf5(path: Path, root: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
    return path.suffix in _SUFFIXES and not hidden and path.is_file()


class Hdf5Episode:
    """One open episode; holds the file open until closed."""

    def __init__(self, config: IngestConfig, path: Path, group: str | None, source_id: str) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._file: h5py.File | None = open_hdf5(path)
        try:
            self._where = f"{path}#{group}" if group else str(path)
            with reading(self._where):
                if group is None:
                    raise EpisodeError(f"{path}: was unreadable when the episodes were listed; run ingest again.")
                self._root: h5py.Group = self._file[group or "/"]
                self.facts = EpisodeFacts()
                self._plan()
        except BaseException:
            self.close()
            raise
        self.source_id = source_id

    def _plan(self) -> None:
        root, config, warnings = self._root, self._config, self.facts.warnings
        assert self._file is not None
        planned = plan_streams(root, config, control_rate(root, self._file), self._where, warnings)
        self._planned: dict[tuple[str, str], Planned] = {(one.spec.kind, one.spec.name): one for one in planned}
        self.streams: Sequence[StreamSpec] = tuple(one.spec for one in planned)
        clock = clock_dataset(root, config, self._where)
        self._clock_path = None if clock is None else clock[0]
        if clock is not None:
            explicit = config.layout.timestamps is not None
            rate = self.streams[0].fps
            where = f"{self._where}: {'.'.join(clock[0])}"
            self.facts.timestamps = read_clock(clock[1], rate, explicit, where, warnings)
        self.facts.language = language(root, self._file)
        names = renamed({spec.source: spec.name for spec in self.streams}) if _no_layout(config) else {}
        if names:
            self.facts.attributes["renamed_streams"] = names
        self._warn_of_pictures()

    def _warn_of_pictures(self) -> None:
        assert self._file is not None
        config, warnings = self._config, self.facts.warnings
        nested = self._root.name != "/"
        if not nested and config.orientation == "as_stored" and stored_upside_down(self._root, self._file):
            warnings.append(f"{self._where}: {_UPSIDE_DOWN}")
        colour = [one for one in self._planned.values() if one.spec.kind == "rgb"]
        if config.jpeg_channel_order == "bgr" and colour and all(one.content.kind != "encoded" for one in colour):
            warnings.append(f"{self._where}: jpeg_channel_order has no effect: no picture in it is encoded")
        unsaid = "jpeg_channel_order" not in config.model_fields_set
        jpegs = [one.spec.name for one in colour if one.spec.encoding == "jpeg"]
        if unsaid and jpegs and aloha_compressed(self._file):
            warnings.append(f"{', '.join(jpegs)}: {_EXCHANGED}")
        simulated = "env_args" in self._file.get("data", self._file).attrs
        floats = [one.spec.name for one in self._planned.values() if one.content.kind == "depth" and one.unit_m is None]
        if simulated and floats:
            warnings.append(
                f"{self._where}: depth {', '.join(floats)} is taken as metres; robosuite stores a normalised "
                "depth buffer unless it was converted"
            )

    def _of(self, spec: StreamSpec) -> tuple[Planned, h5py.Dataset]:
        one = self._planned.get((spec.kind, spec.name))
        if one is None:
            raise EpisodeError(f"{self._where}: has no {spec.kind} stream {spec.name!r}.")
        if self._file is None:
            raise EpisodeError(f"{self._where}: the episode is closed.")
        return one, self._root["/".join(one.path)]

    def frames(self, spec: StreamSpec) -> Iterator[Frame]:
        """See `SourceEpisode.frames`."""
        one, dataset = self._of(spec)
        where = f"{self._where}: {spec.source}"
        return self._colour(one, dataset, where) if spec.kind == "rgb" else self._depth(one, dataset, where)

    def _colour(self, one: Planned, dataset: h5py.Dataset, where: str) -> Iterator[Frame]:
        turner = Turner(self._config)
        for index, row in enumerate(read_rows(dataset, one.content, where)):
            place = f"{where}, row {index}"
            if isinstance(row, EncodedImage):
                yield turner.encoded(row, one.spec, place)
            else:
                yield turn(to_rgb(row, place, scale=one.scale), self._config.orientation)

    def _depth(self, one: Planned, dataset: h5py.Dataset, where: str) -> Iterator[Frame]:
        for index, row in enumerate(read_rows(dataset, one.content, where)):
            place = f"{where}, row {index}"
            raw = decode_depth(row.data, place) if isinstance(row, EncodedImage) else row
            metres = depth_to_m(raw, one.unit_m, place)
            if metres.shape != one.spec.shape:
                raise EpisodeError(f"{place}: {metres.shape} pixels, the first has {one.spec.shape}.")
            yield turn(metres, self._config.orientation)

    def numeric(self, spec: StreamSpec) -> npt.NDArray[np.float32]:
        """See `SourceEpisode.numeric`."""
        _, dataset = self._of(spec)
        where = f"{self._where}: {spec.source}"
        with reading(where):
            values = dataset[()]
        with np.errstate(over="ignore"):  # said below, in words
            rows = np.asarray(values, np.float32).reshape(spec.length, spec.shape[0])
        if values.dtype.kind == "f" and (lost := int(np.isinf(rows).sum() - np.isinf(values).sum())):
            with self._lock:
                self.facts.warnings.append(f"{where}: {lost} values beyond what float32 holds become infinite")
        if values.dtype.kind in "iu" and not np.array_equal(rows.astype(np.float64).ravel(), values.ravel()):
            with self._lock:
                self.facts.warnings.append(f"{where}: integers beyond 2**24 lose their last digits in float32")
        return rows

    def stream_times(self, spec: StreamSpec) -> npt.NDArray[np.float64] | None:
        """None: everything in an HDF5 episode is sampled on one clock."""
        self._of(spec)
        return None

    def packets(self, spec: StreamSpec) -> tuple[av.VideoStream, Iterator[av.Packet[av.VideoStream]]] | None:
        """None: HDF5 holds pictures, not video."""
        self._of(spec)
        return None

    def digest(self) -> str:
        """Hex digest of this episode's streams, clock, rate and language."""
        digest = hashlib.sha256()
        paths = {one.path for one in self._planned.values()} | ({self._clock_path} - {None})
        for path in sorted(path for path in paths if path is not None):
            digest.update("/".join(path).encode())
            hash_dataset(self._root["/".join(path)], digest, self._where)
        said = self.facts.language
        digest.update(repr((said.instruction if said else None, [spec.fps for spec in self.streams])).encode())
        return digest.hexdigest()

    def close(self) -> None:
        """Let go of the file; idempotent."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _no_layout(config: IngestConfig) -> bool:
    layout = config.layout
    return layout.images is None and layout.depths is None and layout.numeric is None
