"""A live capture session: episodes pushed frame by frame into one output directory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from knonik_assets.configs.dataset import CONFIG, build_dataset_config, load_dataset_config, write_dataset_config
from knonik_assets.configs.documents import local_path, plain
from knonik_assets.configs.live import LiveConfig, live_fingerprint, load_live_config
from knonik_assets.episodes.metadata import METADATA, check_extra
from knonik_assets.episodes.storing import recover, workspaces
from knonik_assets.episodes.video import check_preset
from knonik_assets.episodes.writer import EpisodeWriter
from knonik_assets.ingesting.lock import OutputLock
from knonik_assets.ingesting.numbering import assign_numbers, episode_name, read_numbers
from knonik_assets.ingesting.report import Status
from knonik_assets.live.declared import Declarations, Declared, Kind, Role, declare_numeric, declare_pictures
from knonik_assets.live.episode import LiveEpisode
from knonik_assets.live.report import LiveOutcome, LiveReport
from knonik_assets.sources.base import Language
from knonik_loader import access
from knonik_loader.errors import ConfigError, EpisodeError, KnonikError, StorageError

__all__ = ["FORMAT", "LiveSession", "live_session"]

FORMAT = "live"


def live_session(
    output: str | Path | None,
    preset: str | Mapping[str, Any] | None = "medium",
    preset_overrides: Mapping[str, Any] | None = None,
    force_config: bool = False,
    metadata: Mapping[str, Any] | None = None,
) -> LiveSession:
    """A session that writes what is pushed; use it in a ``with`` statement.

    Args:
        output: where the episode directories go; new episodes are numbered behind those that are there.
        preset: how strongly to compress: a name, or a block ``{rgb, depth, numeric}``.
        preset_overrides: merged over it, key by key.
        force_config: write the dataset config anew where there is one.
        metadata: of every episode: ``dataset``, ``robot_type``, ``language_instruction``, anything else is kept.

    Raises:
        ConfigError: a mistake in the call; the output is untouched.
        LoginRequired: an issuer is configured and there is no valid token.
    """
    said = {"preset": preset, "preset_overrides": preset_overrides, "metadata": metadata}
    config = load_live_config({key: value for key, value in said.items() if value is not None}, "live_session")
    return LiveSession(config, output, force_config=force_config)


class LiveSession:
    """Takes frames while its ``with`` block runs, and holds the lock on the output.

    Calls may come from several threads, of one stream from one at a time. Encoding runs behind them: a call waits only
    while the encoders are more than a second behind.

    Attributes:
        report: what became of the episodes so far; complete, and in ``ingest_report.json``, after the block.
    """

    def __init__(self, config: LiveConfig, output: str | Path | None, *, force_config: bool = False) -> None:
        access.require("ingest")
        check_preset(config.preset)
        self._about = _split(config.metadata, "live config")
        given = output if output is not None else config.output_dir
        if given is None or not str(given):
            raise ConfigError("no output directory is named: say output (--output), or output_dir in the config.")
        if "://" in str(given):
            raise ConfigError(f"{given}: episodes are written to local disks only in this version.")
        self.out = local_path(given, "output")
        self._preset, self._force = config.preset, force_config
        self._fingerprint = live_fingerprint(config.preset)
        self._declared = Declarations("the session")
        self._open: LiveEpisode | None = None
        self._opened = 0.0
        self._numbers: dict[str, int] = {}
        self._stack: ExitStack | None = None
        self._started = time.perf_counter()
        self.report = LiveReport(output=str(self.out), source_format=FORMAT, config_fingerprint=self._fingerprint)

    def __enter__(self) -> Self:
        if self._stack is not None:
            raise ConfigError("this live session was entered before; make a new one with live_session()")
        with ExitStack() as stack:
            stack.enter_context(OutputLock(self.out))
            unfinished = _unfinished(self.out)
            restored = recover(self.out)
            numbers = read_numbers(self.out)
            # A capture that was killed had its number recorded just before it would have appeared under it.
            self._numbers = {
                source_id: number
                for source_id, number in numbers.items()
                if source_id != _source_id(number) or number not in unfinished
            }
            self._stack = stack.pop_all()
        self._started = time.perf_counter()
        codec = self._preset.rgb.codec
        if codec == "copy":
            self.report.warnings.append("codec copy has nothing to copy from live frames, which are encoded as vp9")
        self.report.warnings += [f"{knob} has no effect with codec {codec}" for knob in self._preset.inactive()]
        self.report.warnings += [f"{name} was put back from an interrupted replacement" for name in restored]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._stack is not None
        with self._stack:
            if error is not None:
                self.abort()
                with suppress(KnonikError):  # what ended the block is the news
                    self._close()
                return
            try:
                if self._open is not None:
                    self.end()
            finally:
                self._close()

    def register_rgb(self, name: str, fps: float) -> None:
        """Register a colour stream, for all episodes to come, or for the open one before its first frame.

        Raises:
            ConfigError: fps is no sane number.
            EpisodeError: the name is not usable or taken, or the open episode has frames already.
        """
        self._register(declare_pictures("rgb", name, fps))

    def register_depth(self, name: str, fps: float) -> None:
        """Register a depth stream; see `register_rgb`."""
        self._register(declare_pictures("depth", name, fps))

    def register_numeric(
        self, name: str, dim: int, role: Role | None = None, channel_names: Sequence[str] | None = None
    ) -> None:
        """Register a stream of ``dim`` numbers a row; role and channel names go into the dataset config.

        Raises:
            ConfigError: dim, role or channel names are not what they should be.
            EpisodeError: see `register_rgb`; or the role is taken, or the channel names don't fit.
        """
        self._register(declare_numeric(name, dim, role, channel_names))

    @contextmanager
    def episode(self, metadata: Mapping[str, Any] | None = None) -> Iterator[Self]:
        """An episode: written whole when the block ends, discarded when it raises.

        Args:
            metadata: of this episode, over the session's.

        Raises:
            ConfigError: a metadata entry cannot be kept.
            EpisodeError: another one is open; or, at the end, it has no frames.
            StorageError: the disk refuses.
        """
        self.start(metadata)
        try:
            yield self
        except BaseException as error:
            self.abort(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
            raise
        self.end()

    def rgb(self, name: str, value: Any, timestamp: float | None = None) -> None:  # noqa: ANN401 - any array
        """Push the next frame of a colour stream: uint8 (H, W, 3) RGB, or what becomes it without a guess.

        Floats are 0 to 1; grey, alpha and channels first are understood. The array is copied.

        Raises:
            EpisodeError: the frame or its time doesn't fit the stream; the episode is as it was.
            StorageError: an earlier frame could not be written.
        """
        self.push("rgb", name, value, timestamp)

    def depth(self, name: str, value: Any, timestamp: float | None = None) -> None:  # noqa: ANN401 - any array
        """Push the next (H, W) frame of a depth stream: floats are metres, integers millimetres; see `rgb`."""
        self.push("depth", name, value, timestamp)

    def numeric(self, name: str, value: Any, timestamp: float | None = None) -> None:  # noqa: ANN401 - any numbers
        """Push the next (D,) row of a numeric stream; see `rgb`."""
        self.push("numeric", name, value, timestamp)

    def push(self, kind: Kind, name: str, value: Any, timestamp: Any = None) -> None:  # noqa: ANN401 - what was given
        """Push a frame or row of any kind; see `rgb`, `depth` and `numeric`."""
        self._current().push(kind, name, value, timestamp)

    def check(self, kind: Kind, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Check shape and type of a frame that is still to be read.

        Raises:
            EpisodeError: no such stream, or the frame doesn't fit it.
        """
        self._current().check(kind, name, shape, dtype)

    def start(self, metadata: Mapping[str, Any] | None = None) -> None:
        """Open an episode; `episode` does this and what follows.

        Raises:
            ConfigError: a metadata entry cannot be kept.
            EpisodeError: another one is open.
        """
        if self._stack is None:
            raise ConfigError("the live session is not entered: write 'with live_session(...) as session:'")
        if self._open is not None:
            raise EpisodeError(f"{self._open.episode_id} is still open; end or abort it first")
        dataset, robot_type, extra = _split({} if metadata is None else metadata, "episode", self._about)
        number = self._following()
        episode_id = episode_name(number)

        def writer(fps: float) -> EpisodeWriter:
            made = EpisodeWriter(
                self.out,
                episode_id,
                preset=self._preset,
                source_format=FORMAT,
                source_id=_source_id(number),
                source_fingerprint=None,
                config_fingerprint=self._fingerprint,
                dataset=dataset or self.out.resolve().name or "dataset",
                robot_type=robot_type or "unknown",
                fps=fps,
                extra=extra,
            )
            if "language_instruction" in extra:
                made.language(Language(extra["language_instruction"]), "metadata")
            return made

        self._open = LiveEpisode(number, self._declared, writer, self._preset.rgb.workers)
        self._opened = time.perf_counter()

    def end(self) -> None:
        """Write the open episode.

        Raises:
            EpisodeError: none is open, or it has no frames, or a frame could not be encoded; it is discarded then.
            StorageError: the disk refuses; it is discarded then.
        """
        episode = self._current()

        def record() -> None:
            self._numbers = assign_numbers(self.out, [_source_id(episode.number)], self._numbers)

        empty = episode.is_empty
        try:
            metadata = episode.finish(record)
        except KnonikError as error:
            self._note(episode, "empty" if empty else "failed", reason=str(error))
            self._numbers.pop(_source_id(episode.number), None)  # nothing came of it: the next one takes it
            raise
        finally:
            self._open = None
        size = sum(entry.bytes for entry in metadata.files.values())
        size += (self.out / episode.episode_id / METADATA).stat().st_size
        if episode.waiting.longest > 1 / metadata.fps:
            episode.warnings.append(
                f"the producer was held up for {episode.waiting.seconds:.1f} s in all, {episode.waiting.longest:.2f} s "
                "at once: frames came faster than this machine encodes them; no frame was lost"
            )
        self._note(episode, "written", frames=metadata.episode_length, bytes=size)

    def abort(self, reason: str = "aborted by the producer") -> None:
        """Discard the open episode, if there is one; its number goes to the next."""
        episode, self._open = self._open, None
        if episode is not None:
            episode.discard()
            self._note(episode, "discarded", reason=reason)

    @property
    def is_open(self) -> bool:
        """Whether an episode is open."""
        return self._open is not None

    def _register(self, one: Declared) -> None:
        if self._open is not None:
            self._open.register(one)
        else:
            self._declared.add(one)

    def _current(self) -> LiveEpisode:
        if self._open is None:
            raise EpisodeError("no episode is open: start one first")
        return self._open

    def _following(self) -> int:
        """The number behind all that were given, and behind all folders that look like episodes."""
        there = (path.name.removeprefix("episode_") for path in self.out.glob("episode_*"))
        taken = [int(digits) for digits in there if digits.isdecimal()]
        return max([*self._numbers.values(), *taken], default=-1) + 1

    def _note(self, episode: LiveEpisode, status: Status, reason: str = "", frames: int = 0, bytes: int = 0) -> None:
        waiting = episode.waiting
        outcome = LiveOutcome(
            episode_id=episode.episode_id,
            source_id=_source_id(episode.number),
            status=status,
            reason=reason,
            frames=frames,
            bytes=bytes,
            seconds=round(time.perf_counter() - self._opened, 3),
            warnings=episode.warnings,
            blocked_seconds=round(waiting.seconds, 3),
            longest_block_seconds=round(waiting.longest, 3),
        )
        self.report.episodes.append(outcome)
        self.report.blocked_seconds = round(self.report.blocked_seconds + waiting.seconds, 3)

    def _close(self) -> None:
        """Write the dataset config and the report."""
        if self.report.written:
            self._dataset_config()
        else:
            self.report.warnings.append("no episode was written")
        self.report.seconds = round(time.perf_counter() - self._started, 3)
        self.report.write(self.out)

    def _dataset_config(self) -> None:
        try:
            built = build_dataset_config(self.out)
            if not (self.out / CONFIG).exists() or self._force:
                write_dataset_config(self.out, built)
                return
            kept = load_dataset_config(self.out / CONFIG)
            for role in ("action", "state"):
                said, stands = getattr(built.roles, role), getattr(kept.roles, role)
                if said != stands and not said.startswith("<FILL:"):
                    self.report.warnings.append(
                        f"{CONFIG} says that the {role} is {stands!r}, the capture says {said!r}; it is kept as it "
                        "was, force_config writes it anew"
                    )
            if kept.streams != built.streams:
                self.report.warnings.append(
                    f"{CONFIG} describes other streams than the episodes have; it is kept as it was, force_config "
                    "writes it anew"
                )
        except StorageError:
            raise
        except KnonikError as error:
            self.report.warnings.append(f"{CONFIG} was not written: {error}")


def _source_id(number: int) -> str:
    """No file can be called so: an ingest into the same output never takes the episode for one of its own."""
    return f"live:{number:06d}"


def _unfinished(out: Path) -> set[int]:
    """Numbers of episodes that were being written when their process died, and are not there."""
    parent = workspaces(out)
    names = {path.name.partition(".")[0] for path in parent.iterdir()} if parent.is_dir() else set()
    digits = [name.removeprefix("episode_") for name in names if not (out / name).exists()]
    return {int(number) for number in digits if number.isdecimal()}


_About = tuple[str | None, str | None, dict[str, Any]]


def _split(metadata: Mapping[str, Any], where: str, base: _About = (None, None, {})) -> _About:
    """Dataset, robot type and further entries, over those of ``base``.

    Raises:
        ConfigError: an entry is one that the writer itself fills in, or cannot be kept.
    """
    own = load_live_config({"metadata": plain(metadata, where)}, where).metadata
    dataset, robot_type = own.pop("dataset", base[0]), own.pop("robot_type", base[1])
    return dataset, robot_type, {**base[2], **check_extra(own)}
