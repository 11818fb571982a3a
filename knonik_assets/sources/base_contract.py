"""`SourceContract`: what every reader must do, as tests.

Subclass it in a test module, and give it data whose content is known.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
from abc import abstractmethod
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from knonik_assets.sources.base import EncodedImage, EpisodeRef, Frame, Source, SourceEpisode, StreamSpec
from knonik_assets.sources.images import decode_image
from knonik_loader.errors import KnonikError

__all__ = ["Expected", "NoCache", "SourceContract"]


class NoCache:
    """A `FingerprintCache` that remembers nothing."""

    def file_digest(self, path: Path) -> str:
        """Hex sha256 of the file's content."""
        return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass(frozen=True)
class Expected:
    """What one episode holds, known from another reader or from having written it."""

    numeric: Mapping[str, npt.NDArray[Any]]
    """(T, D) by output name."""
    pictures: Mapping[str, npt.NDArray[Any]]
    """(T, H, W, 3) uint8 by output name."""
    depth: Mapping[str, npt.NDArray[Any]]
    """(T, H, W) metres by output name."""
    tolerance: float = 0.0
    """Mean absolute difference allowed in pictures, in grey levels: 0 for lossless sources."""
    timestamps: npt.NDArray[Any] | None = None
    instruction: str | None = None


def as_array(frame: Frame) -> npt.NDArray[Any]:
    """A frame's pixels, decoded where the source hands it out encoded."""
    return decode_image(frame) if isinstance(frame, EncodedImage) else frame


class SourceContract:
    """Subclasses give the methods without a body; every test then runs against their source."""

    @abstractmethod
    def make_data(self, folder: Path) -> Path:
        """Write the raw dataset into a folder and return what `make_source` takes."""

    @abstractmethod
    def make_source(self, root: Path) -> Source:
        """A source over a raw dataset."""

    @abstractmethod
    def expected(self) -> Mapping[str, Expected]:
        """Source id → content, in natural order; eleven or more episodes show whether that order is kept."""

    @abstractmethod
    def change(self, root: Path, source_id: str) -> None:
        """Change the content of this one episode, nothing else."""

    def source(self, tmp_path: Path) -> tuple[Source, Path]:
        """A source over freshly written data."""
        root = self.make_data(tmp_path / "raw")
        return self.make_source(root), root

    def fingerprints(self, source: Source) -> dict[str, str]:
        """Of every episode."""
        return {ref.source_id: source.fingerprint(ref, NoCache()) for ref in source.episodes()}

    def test_episodes_are_listed_in_natural_order_with_stable_names(self, tmp_path: Path) -> None:
        """``demo_2`` comes before ``demo_10``, and listing twice gives the same."""
        source, _ = self.source(tmp_path)
        assert [ref.source_id for ref in source.episodes()] == list(self.expected())
        assert source.episodes() == source.episodes()

    def test_every_value_is_the_right_one(self, tmp_path: Path) -> None:
        """Every frame and row of every episode, its clock and its instruction."""
        source, _ = self.source(tmp_path)
        for ref in source.episodes():
            wanted = self.expected()[ref.source_id]
            with source.open(ref) as episode:
                self.check_episode(episode, wanted)

    def check_episode(self, episode: SourceEpisode, wanted: Expected) -> None:
        """Compare an open episode with what is known of it."""
        of = {"rgb": wanted.pictures, "depth": wanted.depth, "numeric": wanted.numeric}
        for kind, streams in of.items():
            assert {spec.name for spec in episode.streams if spec.kind == kind} == set(streams)
        for spec in episode.streams:
            values = of[spec.kind][spec.name]
            assert spec.length == len(values)
            if spec.kind == "numeric":
                rows = episode.numeric(spec)
                assert rows.dtype == np.float32
                assert rows.shape == (spec.length, *spec.shape)
                np.testing.assert_array_equal(rows, values.astype(np.float32))
                continue
            frames = [as_array(frame) for frame in episode.frames(spec)]
            assert len(frames) == spec.length
            for frame, value in zip(frames, values, strict=True):
                assert frame.shape == spec.shape
                assert frame.dtype == (np.uint8 if spec.kind == "rgb" else np.float32)
                assert frame.flags.c_contiguous
                away = np.abs(frame.astype(np.float64) - value).mean()
                assert away <= wanted.tolerance, f"{spec.name}: {away} away"
        if wanted.timestamps is not None:
            assert episode.facts.timestamps is not None
            np.testing.assert_allclose(episode.facts.timestamps, wanted.timestamps, atol=1e-7)
        if wanted.instruction is not None:
            assert episode.facts.language is not None
            assert episode.facts.language.instruction == wanted.instruction

    def test_source_and_refs_survive_pickling_also_after_use(self, tmp_path: Path) -> None:
        """Workers get them by pickle."""
        source, _ = self.source(tmp_path)
        refs = source.episodes()
        with source.open(refs[0]) as episode:
            specs = tuple(episode.streams)
        again: Source = pickle.loads(pickle.dumps(source))
        ref: EpisodeRef = pickle.loads(pickle.dumps(refs[0]))
        with again.open(ref) as episode:
            assert tuple(episode.streams) == specs
            self.check_episode(episode, self.expected()[ref.source_id])

    def test_fingerprints_follow_content_not_place_or_time(self, tmp_path: Path) -> None:
        """Moved and touched data stays the same data; a changed value is another episode."""
        source, root = self.source(tmp_path)
        first = self.fingerprints(source)
        assert len(set(first.values())) == len(first)
        assert self.fingerprints(self.make_source(root)) == first
        moved = tmp_path / "elsewhere" / root.relative_to(tmp_path)
        moved.parent.mkdir(parents=True)
        shutil.move(root, moved)
        for path in moved.rglob("*"):
            os.utime(path, (1_000_000_000, 1_000_000_000))
        assert self.fingerprints(self.make_source(moved)) == first
        victim = list(first)[1]
        self.change(moved, victim)
        changed = self.fingerprints(self.make_source(moved))
        assert {name for name in first if changed[name] != first[name]} == {victim}

    def test_reading_twice_gives_the_same(self, tmp_path: Path) -> None:
        """Iterators start afresh."""
        source, _ = self.source(tmp_path)
        with source.open(source.episodes()[0]) as episode:
            for spec in episode.streams:
                assert self.read(episode, spec) == self.read(episode, spec)

    def read(self, episode: SourceEpisode, spec: StreamSpec) -> list[bytes]:
        """Every frame or row of a stream as bytes."""
        if spec.kind == "numeric":
            return [row.tobytes() for row in episode.numeric(spec)]
        return [as_array(frame).tobytes() for frame in episode.frames(spec)]

    def test_streams_can_be_read_at_once_from_several_threads(self, tmp_path: Path) -> None:
        """Cameras are encoded in parallel."""
        source, _ = self.source(tmp_path)
        with source.open(source.episodes()[0]) as episode:
            alone = [self.read(episode, spec) for spec in episode.streams]
            with ThreadPoolExecutor(4) as pool:
                tasks = [pool.submit(self.read, episode, spec) for spec in episode.streams]
                assert [task.result() for task in tasks] == alone

    def test_streams_can_be_read_in_turns(self, tmp_path: Path) -> None:
        """Iterators don't share a place in a file."""
        source, _ = self.source(tmp_path)
        with source.open(source.episodes()[0]) as episode:
            pictures = [spec for spec in episode.streams if spec.kind != "numeric"]
            alone = [self.read(episode, spec) for spec in pictures]
            turns: list[list[bytes]] = [[] for _ in pictures]
            for frames in zip(*(episode.frames(spec) for spec in pictures), strict=False):
                for place, frame in enumerate(frames):
                    turns[place].append(as_array(frame).tobytes())
            assert turns == [frames[: len(turns[0])] for frames in alone]

    def test_closing_lets_go_of_every_file(self, tmp_path: Path) -> None:
        """Also with iterators left halfway."""
        source, root = self.source(tmp_path)
        for ref in source.episodes()[:3]:
            with source.open(ref) as episode:
                iterators = [episode.frames(spec) for spec in episode.streams if spec.kind != "numeric"]
                for frames in iterators:
                    next(frames)
                    close = getattr(frames, "close", None)
                    if close is not None:
                        close()
            assert open_files(root) == []

    def test_a_closed_episode_refuses_to_be_read(self, tmp_path: Path) -> None:
        """By name, not by a library's own error."""
        source, _ = self.source(tmp_path)
        with source.open(source.episodes()[0]) as episode:
            specs = tuple(episode.streams)
        for spec in specs:
            assert "closed" in refusal(self, episode, spec)


def refusal(contract: SourceContract, episode: SourceEpisode, spec: StreamSpec) -> str:
    """What a reader says when it refuses; nothing where it reads."""
    try:
        contract.read(episode, spec)
    except KnonikError as error:
        return str(error)
    return ""


def open_files(root: Path) -> list[str]:
    """Files below a folder that this process holds open (Linux)."""
    held = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
        except OSError:
            continue
        if target.startswith(str(root)):
            held.append(target)
    return held
