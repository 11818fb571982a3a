"""What is remembered of a remote dataset beside the output: fingerprints of episodes by the state of their objects.

A cache only: without it every object is read again to learn its content, and nothing else changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["OBJECTS", "ObjectMemory"]

OBJECTS = ".knonik/objects.json"
"""Where an output keeps it."""


class ObjectMemory:
    """Fingerprints of one remote dataset as one config reads it.

    Args:
        data: what `dump` gave an earlier run; None: nothing is remembered.
        url: of the dataset.
        config: fingerprint of the config; what another one found doesn't count.
    """

    def __init__(self, data: bytes | None, url: str, config: str) -> None:
        self._known: dict[str, tuple[str, str]] = {}
        self._listing = ""
        self._order: tuple[str, ...] = ()
        self.warnings: tuple[str, ...] = ()
        self._about = {"url": url, "config": config}
        self._changed = False
        self._read(data)

    def _read(self, data: bytes | None) -> None:
        try:
            found: Any = json.loads(data) if data is not None else {}
            if all(found.get(key) == value for key, value in self._about.items()):
                self._known = {
                    str(name): (str(state), str(digest)) for name, (state, digest) in found["episodes"].items()
                }
                self._listing, self._order = str(found["listing"]), tuple(map(str, found["order"]))
                self.warnings = tuple(map(str, found["warnings"]))
        except (ValueError, TypeError, AttributeError, KeyError):
            return  # missing or damaged: everything is new

    def __bool__(self) -> bool:
        return bool(self._known)

    def order(self, listing: str) -> tuple[str, ...]:
        """The episodes that were found in a dataset of just this state; nothing where that isn't known.

        Known is only a dataset all of whose episodes have a fingerprint: the others would have to be looked at.
        """
        whole = listing == self._listing and all(name in self._known for name in self._order)
        return self._order if whole else ()

    def fingerprint(self, name: str, state: str) -> str | None:
        """An episode's fingerprint, if its objects are in the state in which it was read."""
        known = self._known.get(name)
        return known[1] if known is not None and known[0] == state else None

    def state(self, name: str) -> str:
        """State of an episode's objects when it was read; "" where it never was."""
        return self._known.get(name, ("", ""))[0]

    def found(self, listing: str, names: Sequence[str], warnings: Sequence[str]) -> None:
        """Which episodes a dataset of this state has."""
        if (listing, tuple(names), tuple(warnings)) != (self._listing, self._order, self.warnings):
            self._listing, self._order, self.warnings = listing, tuple(names), tuple(warnings)
            self._known = {name: self._known[name] for name in names if name in self._known}
            self._changed = True

    def learn(self, fingerprints: Mapping[str, tuple[str, str]]) -> None:
        """Take over episode → (state, fingerprint)."""
        for name, known in fingerprints.items():
            if self._known.get(name) != known:
                self._known[name] = known
                self._changed = True

    def dump(self) -> bytes | None:
        """What a later run shall remember; None where it is what this one was given."""
        if not self._changed:
            return None
        content = {
            **self._about,
            "listing": self._listing,
            "order": list(self._order),
            "warnings": list(self.warnings),
            "episodes": {name: list(known) for name, known in sorted(self._known.items())},
        }
        return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
