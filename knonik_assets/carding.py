"""Dataset cards from the command line: write one from what a raw dataset shows, list them, look them over."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from knonik_assets.configs.card import NAME, PROFILES, DatasetCard, card_folder, card_schema, load_card
from knonik_assets.configs.cards import CardFolder, scan_cards
from knonik_assets.configs.documents import write_whole
from knonik_assets.episodes.storing import storage_errors
from knonik_assets.sources.detect import Detection, detect
from knonik_assets.sources.detect_config import config_lines
from knonik_assets.storage import Place
from knonik_loader.errors import ConfigError, KnonikError

__all__ = ["CardState", "add_card", "check_card", "list_cards"]

_SCHEMA = "card.schema.json"
_ENOUGH_TO_SPLIT = 20
"""Episodes from which 0.9 to 0.1 leaves the smaller part empty in less than one of eight datasets."""

_MENTIONED = {"jpeg_channel_order": "jpeg_channel_order", "orientation": "orientation", "fps": "set fps"}
"""Keys that an ingest config answers → what is in the warnings of `detect` that ask for them."""


@dataclass
class CardState:
    """A card and what was found about it."""

    name: str
    path: Path
    problems: list[str] = field(default_factory=list)
    """What keeps the dataset from being built."""
    notes: list[str] = field(default_factory=list)
    """What a person should look at."""
    episodes: int | None = None
    """Raw episodes found; None: not looked at, or not readable."""
    profiles: tuple[str, ...] = ()
    schedule: str | None = None


def add_card(name: str, raw: str | Path, folder: Path | None = None) -> tuple[Path, Detection]:
    """Write ``<name>.yaml`` from what `detect` finds in ``raw``, and the schema that editors complete cards with.

    Raises:
        ConfigError: the name is none, or there is such a card already.
        SourceError: nothing readable is at ``raw``.
    """
    folder = folder or card_folder()
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot name a dataset: letters, digits, '_', '-' and '.' only, at most 128, no dot in front."
        )
    path = folder / f"{name}.yaml"
    taken = scan_cards(folder)
    if path.exists() or name in taken.names:
        there = taken.cards[name].path if name in taken.cards else path
        raise ConfigError(f"{there} is the card of {name!r} already; choose another name or edit that file.")
    found = detect(str(Place.of(raw, "raw")))
    if not found.readable:
        raise ConfigError(f"{raw}: {'; '.join(found.warnings)}")
    with storage_errors("write cards to", folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / _SCHEMA, (json.dumps(card_schema(), indent=1, sort_keys=True) + "\n").encode())
    write_whole(path, _text(name, found).encode())
    load_card(path)  # what was written must be a card
    return path, found


def list_cards(folder: Path | None = None) -> list[CardState]:
    """Every card of the folder, broken ones with their problem."""
    cards = scan_cards(folder or card_folder())
    states = [
        CardState(name, card.path, profiles=card.profiles, schedule=card.schedule) for name, card in cards.cards.items()
    ]
    states += [CardState(problem.name, problem.path, [str(problem.error)]) for problem in cards.problems.values()]
    return sorted(states, key=lambda state: state.name)


def check_card(name: str, folder: Path | None = None) -> CardState:
    """Look a card over: its file, its raw data and layout, and what the data looks suspicious for.

    Raises:
        ConfigError: there is no card of this name.
    """
    cards = scan_cards(folder or card_folder())
    if name in cards.problems:
        problem = cards.problems[name]
        return CardState(name, problem.path, [str(problem.error)])
    card = _known(cards, name)
    state = CardState(name, card.path, profiles=card.profiles, schedule=card.schedule)
    _look_at_raw(card, state)
    if not card.pack:
        state.notes.append("pack.profiles is empty: nothing will be packed")
    if not card.owners:
        state.notes.append("owners is empty: nobody is told whose dataset this is")
    return state


def _known(cards: CardFolder, name: str) -> DatasetCard:
    from knonik_assets.configs.validation import unknown

    if name not in cards.cards:
        raise ConfigError(f"{cards.path}: {unknown(name, cards.names, 'dataset')}")
    return cards.cards[name]


def _look_at_raw(card: DatasetCard, state: CardState) -> None:
    from knonik_assets.sources.guarded import open_guarded

    try:
        with closing(open_guarded(card.ingest_config(), card.raw)) as source:
            refs = source.episodes()
            state.episodes = len(refs)
            if not refs:
                state.problems.append(f"{card.raw} has no episode")
                return
            with source.open(refs[0]) as episode:
                state.notes += [*source.warnings, *episode.facts.warnings]
        suspicious = detect(str(card.raw))
        settled = _MENTIONED.keys() & {key for key, value in card.ingest.items() if value is not None}
        state.notes += [text for text in suspicious.warnings if not any(_MENTIONED[key] in text for key in settled)]
    except KnonikError as error:
        state.problems.append(str(error))
    state.notes = list(dict.fromkeys(state.notes))


def _text(name: str, found: Detection) -> str:
    """The card as a person would write it: what was found, what looks suspicious, and what may be added."""
    config = {key: value for key, value in found.config.items() if key != "data_dir"}
    config["metadata"] = {**config.get("metadata", {}), "dataset": name}
    lines = [
        f"# yaml-language-server: $schema={_SCHEMA}",
        f"# {found.family}: {found.episodes} episodes found. Paths go from this file's folder.",
        *(f"# Look at this: {_one_line(warning)}" for warning in found.warnings),
        _block({"name": name, "raw": _absolute(found.path)}),
        "ingest:",
        *(f"  {line}" for line in config_lines(found, config)),
        _pack_block(found.episodes or 0),
        "# What recordings cannot say, for the dataset config:",
        "# config: {robot_type: aloha, action_semantics: joint_position}",
        '# schedule: "0 3 * * *"',
        "# owners: [team:robot-data]",
    ]
    return "\n".join(lines) + "\n"


def _pack_block(episodes: int) -> str:
    """A split only where a hash of each episode comes near its fractions."""
    if episodes >= _ENOUGH_TO_SPLIT:
        return _block({"pack": {"profiles": [PROFILES[1]], "split": {"train": 0.9, "val": 0.1}}})
    few = "  # With so few episodes a split by hash may leave one part empty.\n  # split: {train: 0.9, val: 0.1}\n"
    return _block({"pack": {"profiles": [PROFILES[1]]}}) + few


def _absolute(where: str) -> str:
    place = Place.of(where, "raw")
    return where if place.is_remote else str(place.path.resolve())


def _one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))


def _block(value: dict[str, Any]) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=110)
