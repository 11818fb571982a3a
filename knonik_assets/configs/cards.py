"""The folder of dataset cards."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from knonik_assets.configs.card import NAME, DatasetCard, load_card
from knonik_assets.configs.validation import unknown
from knonik_loader.errors import ConfigError

__all__ = ["CardFolder", "CardProblem", "load_cards", "scan_cards"]


@dataclass(frozen=True)
class CardProblem:
    """A card that cannot be used, and why."""

    name: str
    """The file's name without ending: what the dataset is most likely called."""
    path: Path
    error: ConfigError


@dataclass(frozen=True)
class CardFolder:
    """The cards of a folder. A broken one stands among the problems and takes nothing else down."""

    path: Path
    cards: dict[str, DatasetCard] = field(default_factory=dict)
    problems: dict[str, CardProblem] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Every dataset, broken or not: a mistake in a card must not make its dataset vanish."""
        return sorted({*self.cards, *(name for name in self.problems if NAME.fullmatch(name))})

    def card(self, name: str) -> DatasetCard:
        """The card of a dataset, read again from its file, so that a run acts on what the card says now.

        Raises:
            ConfigError: the card is broken, or there is none of this name.
        """
        known = self.cards.get(name)
        if known is not None:  # its own file first: a folder of many cards takes a second to read
            with suppress(ConfigError):
                card = load_card(known.path)
                if card.name == name:
                    return card
        current = scan_cards(self.path)
        if name in current.cards:
            return current.cards[name]
        if name in current.problems:
            raise current.problems[name].error
        raise ConfigError(f"{self.path}: {unknown(name, current.names, 'dataset')}")


def load_cards(folder: str | Path) -> dict[str, DatasetCard]:
    """Every card of a folder by name.

    Raises:
        ConfigError: the first card that is broken. `scan_cards` keeps the others.
    """
    found = scan_cards(folder)
    for problem in found.problems.values():
        raise problem.error
    return found.cards


def scan_cards(folder: str | Path) -> CardFolder:
    """The cards of a folder (``*.yaml``, ``*.yml``), broken ones apart. A missing folder has no cards."""
    found = CardFolder(Path(folder))
    for path in sorted([*found.path.glob("*.yaml"), *found.path.glob("*.yml")]):
        try:
            card = load_card(path)
        except ConfigError as error:
            found.problems[path.stem] = CardProblem(path.stem, path, error)
            continue
        if card.name in found.cards:
            other = found.cards[card.name].path
            twice = ConfigError(f"{path}: the name {card.name!r} belongs to {other.name} already; choose another one.")
            found.problems[path.stem] = CardProblem(path.stem, path, twice)
        else:
            found.cards[card.name] = card
    for name in [name for name in found.problems if name in found.cards]:
        # the file is called as another card is named: the healthy one keeps the name
        problem = found.problems.pop(name)
        found.problems[f"{name} ({problem.path.name})"] = problem
    return found
