"""ROS 2 bags in SQLite (``.db3``), of every schema version, with what still stands in their write-ahead log."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from knonik_assets.sources.ros.compression import copied, temporary_folder
from knonik_assets.sources.ros.files import MAX_BLOCK, Channel, Found, Need
from knonik_loader.errors import EpisodeError

__all__ = ["Sqlite"]

_MAGIC = b"SQLite format 3\0"


class Sqlite:
    """See the module."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.warnings: list[str] = []
        self._lock = threading.Lock()
        self._folder: Path | None = None
        self._database: sqlite3.Connection | None = None
        self._database = self._connect()

    def _connect(self) -> sqlite3.Connection:
        try:
            with self.path.open("rb") as file:
                magic = file.read(len(_MAGIC))
        except OSError as error:
            raise EpisodeError(f"{self.path}: cannot be read ({error.strerror}).") from error
        if magic != _MAGIC:
            what = "the file is empty (0 bytes)" if not magic else f"no SQLite file; it begins with {magic!r}"
            raise EpisodeError(f"{self.path}: {what}.")
        log = self.path.with_name(f"{self.path.name}-wal")
        pending = log.stat().st_size if log.is_file() else 0
        if pending:
            # A reader of the log needs a shared-memory file beside it, and raw data isn't written to.
            self._folder = copy = temporary_folder(self.path, self.path.stat().st_size + pending)
            for one in (self.path, log):
                copied(one, copy / one.name)
            database = self._opened(copy / self.path.name, "mode=ro")
            if database is not None:
                return database
            self.warnings.append(
                f"{self.path}: {pending:,} bytes of its newest messages stand in {log.name}, which is damaged; they "
                "are left out"
            )
        database = self._opened(self.path, "immutable=1")
        if database is None:
            self.close()
            raise EpisodeError(f"{self.path}: the database is damaged, or no ROS 2 bag; try SQLite's .recover on it.")
        return database

    def _opened(self, path: Path, how: str) -> sqlite3.Connection | None:
        database = sqlite3.connect(f"file:{quote(str(path.absolute()))}?{how}", uri=True, check_same_thread=False)
        try:
            kinds = dict(database.execute("SELECT name, type FROM sqlite_master WHERE name IN ('topics', 'messages')"))
            if kinds.get("topics") == "table":  # a view could go on for ever
                database.execute("SELECT count(*) FROM topics").fetchone()
        except sqlite3.Error:
            database.close()
            return None
        return database

    def _channels(self, database: sqlite3.Connection) -> dict[int, Channel]:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not {"topics", "messages"} <= tables:
            raise EpisodeError(f"{self.path}: no ROS 2 bag: it has no table of topics or messages.")
        definitions: dict[str, tuple[str, bytes]] = {}
        if "message_definitions" in tables:
            rows = database.execute("SELECT topic_type, encoding, encoded_message_definition FROM message_definitions")
            definitions = {str(name): (str(how), str(text).encode()) for name, how, text in rows}
        return {
            number: Channel(str(topic), str(kind), str(form), *definitions.get(str(kind), ("", b"")))
            for number, topic, kind, form in database.execute("SELECT id, name, type, serialization_format FROM topics")
        }

    def scan(self, need: Need) -> Iterator[Found]:
        """See `Container.scan`."""
        database = self._database_open()
        try:
            channels = self._channels(database)
            orphans = 0
            whole = ",".join(str(int(number)) for number, channel in channels.items() if need(channel) is None)
            query = (
                f"SELECT id, topic_id, timestamp, CASE WHEN topic_id IN ({whole}) AND length(data) <= {MAX_BLOCK} "
                "THEN data END FROM messages ORDER BY id"
            )
            for row, number, time, content in database.execute(query):
                channel = channels.get(number)
                if channel is None:
                    orphans += 1
                    continue
                if not isinstance(time, int) or not isinstance(row, int):
                    raise EpisodeError(f"{self.path}: damaged: message {row} has the time {time!r}.")
                if isinstance(content, bytes):
                    yield Found(channel, time, -1, row, len(content), memoryview(content))
                else:
                    yield self._found(database, channel, row, time, need(channel))
        except EpisodeError:
            raise
        except (sqlite3.Error, ValueError, TypeError) as error:
            raise EpisodeError(f"{self.path}: damaged database: {error}; try SQLite's .recover on it.") from error
        if orphans:
            self.warnings.append(f"{self.path}: {orphans} messages belong to no topic and are left out")

    def _found(self, database: sqlite3.Connection, channel: Channel, row: int, time: int, wanted: int | None) -> Found:
        if wanted == 0:
            return Found(channel, time, -1, row, 0, memoryview(b""))
        with self._lock, database.blobopen("messages", "data", row, readonly=True) as blob:
            length = len(blob)
            if length > MAX_BLOCK:
                raise EpisodeError(f"{self.path}: a message of {length:,} bytes (id {row}); too large to be read.")
            data = memoryview(blob.read(length if wanted is None else min(length, wanted)))
        return Found(channel, time, -1, row, length, data)

    def read(self, block: int, offset: int, length: int) -> memoryview:
        """See `Container.read`; the offset is the message's id."""
        del block, length
        try:
            with self._lock, self._database_open().blobopen("messages", "data", offset, readonly=True) as blob:
                return memoryview(blob.read())
        except (sqlite3.Error, OverflowError) as error:
            raise EpisodeError(f"{self.path}: message {offset} cannot be read: {error}.") from error

    def _database_open(self) -> sqlite3.Connection:
        if self._database is None:
            raise EpisodeError(f"{self.path}: the recording is closed.")
        return self._database

    def close(self) -> None:
        """See `Container.close`."""
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None
