"""RLDS datasets as TFDS writes them, read without TensorFlow."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from knonik_assets.configs.ingest import IngestConfig
from knonik_assets.sources.array_episode import ArrayEpisode, Traits
from knonik_assets.sources.arrays import Array, DictTree
from knonik_assets.sources.arrays import Path as Place
from knonik_assets.sources.base import EpisodeRef, FingerprintCache, Language
from knonik_assets.sources.naming import natural_key
from knonik_assets.sources.rlds_features import Feature, parse_features
from knonik_assets.sources.rlds_records import Leaf, Record, index_records, parse_example, read_record
from knonik_assets.sources.rlds_steps import count_steps, step_arrays, texts
from knonik_assets.sources.trees import check_inside
from knonik_loader.errors import EpisodeError, SourceError

__all__ = ["RldsSource"]

_SHARD = re.compile(r"(?P<split>.+)\.(?P<format>\w+)-(?P<shard>\d{5,})-of-(?P<of>\d{5,})")
_INSTRUCTION = re.compile(r"(natural_)?language_instruction(_\d+)?|instruction|task_description")
_MOST_JSON = 64 << 20
_MOST_SHARDS = 1 << 17
_MOST_TOLD, _MOST_TOLD_TEXT = 256, 4096
"""Numbers, and bytes of text, of one feature of a whole episode that go into its metadata."""
_NUMBERS = {
    "{SHARD_X_OF_Y}": r"(?P<shard>\d{5,})-of-(?P<of>\d{5,})",
    "{SHARD_INDEX}": r"(?P<shard>\d{5,})",
    "{NUM_SHARDS}": r"(?P<of>\d{5,})",
}


@dataclass(frozen=True, slots=True)
class _Shard:
    split: str
    number: int
    path: Path
    expected: int | None
    """Records that dataset_info.json counts in it."""


class RldsSource:
    """Every split of one version of one dataset; an episode is named by its shard and its place in it."""

    format = "rlds"

    def __init__(self, config: IngestConfig, root: Path) -> None:
        self.config = config
        self.root = root
        self.warnings: list[str] = []
        self._features: tuple[dict[str, Feature], dict[str, Feature]] | None = None

    def _home(self) -> Path:
        """The folder of the version: the root, or the only one below it.

        Raises:
            SourceError: there is none, or several.
        """
        if not self.root.is_dir():
            raise SourceError(f"{self.root}: there is no such folder.")
        for pattern in ("features.json", "*/features.json", "*/*/features.json", "*/*/*/features.json"):
            found = sorted(self.root.glob(pattern), key=lambda path: natural_key(path.as_posix()))
            if len(found) > 1:
                named = ", ".join(path.parent.relative_to(self.root).as_posix() for path in found[:6])
                raise SourceError(f"{self.root}: holds several datasets or versions ({named}); name one as the input.")
            if found:
                return found[0].parent
        raise SourceError(f"{self.root}: no features.json: a TFDS dataset is <name>/<version>/ with that file in it.")

    def episodes(self) -> Sequence[EpisodeRef]:
        """See `Source.episodes`."""
        self.warnings = []
        home = self._home()
        self._schema(home)
        refs = [ref for shard in self._shards(home) for ref in self._records(shard)]
        if not refs:
            raise SourceError(f"{home}: no record is in any of its files.")
        return refs

    def _schema(self, home: Path) -> tuple[dict[str, Feature], dict[str, Feature]]:
        if self._features is None:
            path = home / "features.json"
            self._features = parse_features(_json(path), str(path))
        return self._features

    def _shards(self, home: Path) -> Iterator[_Shard]:
        """Every shard that is there or ought to be, split by split.

        Raises:
            SourceError: another file format, or no shard at all.
        """
        info = _json(home / "dataset_info.json") if (home / "dataset_info.json").exists() else {}
        if not info:
            self.warnings.append(f"{home}: no dataset_info.json: whether shards are complete can't be told")
        kind = str(info.get("fileFormat") or "tfrecord").lower()
        if kind != "tfrecord":
            raise SourceError(f"{home}: its files are {kind}; only tfrecord is read: convert it with TFDS.")
        name = str(info.get("name") or "")
        counts = _shard_lengths(info)
        there = _shard_files(home, name, _templates(info, name))
        if not there:
            raise SourceError(f"{home}: no *.tfrecord-NNNNN-of-NNNNN file is there: the download is incomplete.")
        for split in dict.fromkeys([*counts, *sorted(there, key=natural_key)]):
            own, lengths = there.get(split, {}), counts.get(split)
            total = len(lengths) if lengths is not None else max((of for _, of in own.values()), default=0)
            total = max(total, max(own, default=-1) + 1)
            if total > _MOST_SHARDS:
                raise SourceError(f"{home}: {total} shards of {split}; at most {_MOST_SHARDS} are accepted.")
            for number in range(total):
                expected = lengths[number] if lengths is not None and number < len(lengths) else None
                wanted = f"{name}-{split}.tfrecord-{number:05d}-of-{total:05d}"
                # what isn't in this folder is missing, whatever path a name spells
                path = own[number][0] if number in own else home / wanted.replace("/", "_")
                yield _Shard(split, number, path, expected)

    def _records(self, shard: _Shard) -> list[EpisodeRef]:
        """The episodes of a shard. What is missing is listed once, and fails by name."""
        name = f"{shard.split}-{shard.number:05d}"
        if not shard.path.exists():
            count = f", {shard.expected} episodes," if shard.expected is not None else ""
            text = f"{shard.path}: the shard{count} is missing (an incomplete download or release)."
            self.warnings.append(text)
            return [EpisodeRef(name, text)]
        try:
            if shard.path.is_symlink():
                check_inside(shard.path, shard.path.parent)
            records, trouble = index_records(shard.path)
        except EpisodeError as error:
            self.warnings.append(str(error))
            return [EpisodeRef(name, str(error))]
        refs = [
            EpisodeRef(f"{name}#{place}", (str(shard.path), record.offset, record.length))
            for place, record in enumerate(records)
        ]
        short = shard.expected is not None and len(records) < shard.expected
        if trouble is not None or short:
            of = f" of {shard.expected}" if shard.expected is not None else ""
            text = f"{shard.path}: ends after {len(records)}{of} records: {trouble or 'the others are missing'}."
            self.warnings.append(text)
            refs.append(EpisodeRef(f"{name}#{len(records)}", text))
        elif shard.expected is not None and len(records) > shard.expected:
            self.warnings.append(
                f"{shard.path}: has {len(records)} records, dataset_info.json says {shard.expected}; all are taken"
            )
        return refs

    def _read(self, ref: EpisodeRef) -> bytes:
        if isinstance(ref.locator, str):
            raise EpisodeError(ref.locator)
        path, offset, length = ref.locator
        return read_record(Path(path), Record(offset, length), f"{path}, record {ref.source_id}")

    def fingerprint(self, ref: EpisodeRef, cache: FingerprintCache) -> str:
        """See `Source.fingerprint`. Of the record."""
        return hashlib.sha256(self._read(ref)).hexdigest()

    def open(self, ref: EpisodeRef) -> ArrayEpisode:
        """See `Source.open`."""
        data = self._read(ref)
        where = f"{ref.locator[0]}, record {ref.source_id}"
        of_steps, of_episode = self._schema(self._home())
        leaves = parse_example(data, where)
        steps = count_steps(leaves, of_steps, where)
        warnings: list[str] = []
        arrays, black = step_arrays(leaves, of_steps, steps, where, warnings)
        said = _language(leaves, of_steps, of_episode, steps, self.config.fps or 30.0)
        traits = Traits(language=said, roles={"action": "action"})
        episode = ArrayEpisode(self.config, _StepTree(arrays), traits, where)
        episode.facts.warnings += [*warnings, *_ends(leaves)]
        episode.facts.attributes["episode_metadata"] = _metadata(leaves, of_episode, episode.facts.warnings)
        last = leaves.get("steps/is_last")
        if isinstance(last, np.ndarray) and len(last) and last[-1]:
            episode.facts.attributes["last_action"] = "undefined by RLDS on a step with is_last; kept as it is stored"
        if black:
            episode.facts.attributes["missing_frames"] = black
        return episode


class _StepTree(DictTree):
    """Keys with and without ``steps`` in front."""

    def find(self, key: str) -> tuple[Place, Array] | None:
        """See `Tree.find`."""
        return super().find(key) or super().find(key.strip("/").replace("/", ".").removeprefix("steps."))


def _json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MOST_JSON:
            raise SourceError(f"{path}: {path.stat().st_size} bytes; at most {_MOST_JSON} are accepted.")
        found = json.loads(path.read_bytes())  # of text it would refuse a byte order mark
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{path}: no readable JSON: {error}.") from error
    if not isinstance(found, dict):
        raise SourceError(f"{path}: a {type(found).__name__} where an object is wanted.")
    return found


def _shard_files(
    home: Path, name: str, templates: Mapping[str, re.Pattern[str]]
) -> dict[str, dict[int, tuple[Path, int]]]:
    """Split → number → file and how many it says there are. Files are looked for in this folder alone."""
    found: dict[str, dict[int, tuple[Path, int]]] = {}
    for path in sorted(home.iterdir()):
        for split, pattern in templates.items():
            if (own := pattern.fullmatch(path.name)) is not None:
                found.setdefault(split, {})[int(own["shard"])] = (path, int(own.groupdict().get("of") or 0))
                break
        else:
            usual = _SHARD.fullmatch(path.name)
            if usual is not None and usual["format"] == "tfrecord":
                split = usual["split"].removeprefix(f"{name}-") if name else usual["split"].rsplit("-", 1)[-1]
                found.setdefault(split, {})[int(usual["shard"])] = (path, int(usual["of"]))
    return found


def _templates(info: Mapping[str, Any], name: str) -> dict[str, re.Pattern[str]]:
    """Split → what its files are called, where dataset_info.json has a template that is understood."""
    found = {}
    splits = info.get("splits")
    for split in splits if isinstance(splits, list) else []:
        template, own = (split.get("filepathTemplate"), split.get("name")) if isinstance(split, dict) else (None, None)
        if not isinstance(template, str) or not isinstance(own, str):
            continue
        known = {"{DATASET}": re.escape(name), "{SPLIT}": re.escape(own), "{FILEFORMAT}": "tfrecord", **_NUMBERS}
        parts = re.split(r"(\{[A-Z_]+\})", template)
        if all(part in known for part in parts[1::2]) and any(part in _NUMBERS for part in parts[1::2]):
            text = "".join(known[part] if part in known else re.escape(part) for part in parts)
            with suppress(re.error):  # a template that names a number twice
                found[own] = re.compile(text)
    return {split: pattern for split, pattern in found.items() if "shard" in pattern.groupindex}


def _shard_lengths(info: Mapping[str, Any]) -> dict[str, list[int]]:
    """Split → records of each shard, as texts of integers in the file."""
    found: dict[str, list[int]] = {}
    splits = info.get("splits")
    for split in splits if isinstance(splits, list) else []:
        try:
            found[str(split["name"])] = [int(count) for count in split.get("shardLengths", [])]
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return {name: lengths for name, lengths in found.items() if lengths}


def _language(
    leaves: Mapping[str, Leaf],
    of_steps: Mapping[str, Feature],
    of_episode: Mapping[str, Feature],
    steps: int,
    fps: float,
) -> Language | None:
    """The instruction of the steps, or of the episode; further ones beside it are rephrases."""
    names = [f"steps/{name}" for name, leaf in of_steps.items() if leaf.kind == "text"]
    names += [name for name, leaf in of_episode.items() if leaf.kind == "text"]
    names = [name for name in names if _INSTRUCTION.fullmatch(name.rsplit("/", 1)[-1])]
    names.sort(key=lambda name: (not name.startswith("steps/"), natural_key(name.rsplit("/", 1)[-1])))
    features = {**of_episode, **{f"steps/{name}": feature for name, feature in of_steps.items()}}
    found = [said for name in names for said in texts(leaves.get(name), features[name].size) if any(said)]
    if not found:
        return None
    first = next(text for text in found[0] if text)
    rephrases = tuple(dict.fromkeys(text for said in found[1:] for text in said[:1] if text and text != first))
    if len(found[0]) != steps or len(set(found[0])) == 1:
        return Language(first, rephrases)
    cuts = [0, *(step for step in range(1, steps) if found[0][step] != found[0][step - 1]), steps]
    segments = tuple(
        (start / fps, min(stop, steps - 1) / fps, found[0][start]) for start, stop in pairwise(cuts) if found[0][start]
    )
    return Language(first, rephrases, segments)


def _ends(leaves: Mapping[str, Leaf]) -> list[str]:
    """What the flags of the steps contradict."""
    found = []
    for flag, place in (("is_first", 0), ("is_last", -1)):
        leaf = leaves.get(f"steps/{flag}")
        if not isinstance(leaf, np.ndarray) or not len(leaf):
            continue
        set_ = np.flatnonzero(leaf)
        wanted = len(leaf) - 1 if place else 0
        if len(set_) != 1 or set_[0] != wanted:
            steps = f"steps {set_[:6].tolist()}" if len(set_) else "no step"
            found.append(f"{flag} is set on {steps}; wanted on the {'last' if place else 'first'} step alone, {wanted}")
    return found


def _metadata(leaves: Mapping[str, Leaf], features: Mapping[str, Feature], warnings: list[str]) -> dict[str, Any]:
    """Numbers and texts that the record says of the whole episode, as far as they are few."""
    found: dict[str, Any] = {}
    left_out = []
    for name, feature in features.items():
        leaf = leaves.get(name)
        if leaf is None:
            continue
        told = _told(leaf, feature)
        if told is None:
            left_out.append(name)
        else:
            found[name.removeprefix("episode_metadata/")] = told
    if left_out:
        warnings.append(f"left out, as they are no few numbers or texts beside the steps: {', '.join(left_out[:12])}")
    return found


def _told(leaf: Leaf, feature: Feature) -> Any:  # noqa: ANN401 - JSON
    """A leaf as JSON: a single value, or lists by its declared shape; None where it is none or a long one."""
    if isinstance(leaf, list):
        if feature.kind != "text" or sum(map(len, leaf)) > _MOST_TOLD_TEXT:
            return None
        values: list[Any] = [one.decode("utf-8", "replace") for one in leaf]
    elif len(leaf) > _MOST_TOLD:
        return None
    else:
        shaped = leaf.astype(bool) if feature.dtype == "bool" else leaf
        if feature.shape is not None and len(feature.shape) > 1 and feature.size == len(leaf):
            shaped = shaped.reshape([side or 0 for side in feature.shape])
        values = shaped.tolist()
    return values[0] if feature.shape == () and not feature.ragged and len(values) == 1 else values
