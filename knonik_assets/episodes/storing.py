"""Putting a whole directory in place at once, and telling storage trouble from bad data.

An episode is built in ``OUT/.knonik/tmp`` and moved into ``OUT`` by one rename. Where an older one stands there, the
two change places in one system call, so that a crash at any moment leaves either the old or the new one, whole.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import itertools
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from knonik_loader.errors import EpisodeError, KnonikError, StorageError, refusal

__all__ = [
    "check_name",
    "digest_file",
    "new_workspace",
    "publish",
    "recover",
    "settle",
    "storage_errors",
    "sync",
    "workspaces",
]

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")
_STATE_PARTIAL = re.compile(r"\.(fingerprints|numbers)\.json\.[0-9]+\.partial")
"""A small file of a run that was killed before it had its name; see `knonik_assets.configs.documents.write_whole`."""
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_counter = itertools.count()
_AT_ONCE = 8
"""Files that wait for the disk together, which costs about as much as one of them."""


def check_name(name: str, what: str) -> str:
    """Return the name if it can stand for a stream or an episode, in file names and batch keys.

    Raises:
        EpisodeError: it is not 1 to 128 of ``A-Za-z0-9_.-``, or begins with a dot.
    """
    if not _NAME.fullmatch(name):
        raise EpisodeError(
            f"{what} name {name!r} is not usable: 1 to 128 letters, digits, '_', '-' or '.', not beginning with '.'"
        )
    return name


@contextmanager
def storage_errors(doing: str, path: Path) -> Iterator[None]:
    """Turn operating-system errors (av's and h5py's too) into a StorageError that names the path."""
    try:
        yield
    except KnonikError:
        raise
    except OSError as error:
        raise StorageError(f"cannot {doing} {path}: {refusal(error)}") from error


def workspaces(out: Path) -> Path:
    """The folder below OUT in which unfinished episodes are built."""
    return out / ".knonik" / "tmp"


def new_workspace(out: Path, episode_id: str) -> Path:
    """Make an empty folder on OUT's file system, named after the episode and this process.

    Raises:
        StorageError: it cannot be made.
    """
    parent = workspaces(out)
    with storage_errors("create", parent):
        parent.mkdir(parents=True, exist_ok=True)
        while True:
            path = parent / f"{episode_id}.{os.getpid()}.{next(_counter)}"
            with suppress(FileExistsError):
                path.mkdir()
                return path


def digest_file(path: Path) -> tuple[int, str]:
    """Size in bytes and hex sha256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest


def settle(files: Sequence[Path]) -> list[tuple[int, str]]:
    """Force files to the disk, several at once; size and digest of each as by `digest_file`."""

    def settled(path: Path) -> tuple[int, str]:
        found = digest_file(path)
        sync(path)
        return found

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="settle") as pool:
        return list(pool.map(settled, files))


def sync(path: Path) -> None:
    """Force a file, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(work: Path, out: Path, episode_id: str) -> Path:
    """Sync a finished folder and move it to ``out / episode_id``, replacing what stands there.

    Raises:
        StorageError: the move failed; the older episode, if any, is still there.
    """
    target = out / episode_id
    with storage_errors("put in place", target):
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="sync") as pool:
            list(pool.map(sync, [work, *work.rglob("*")]))
        if target.exists():
            if not _exchange(work, target):
                _replace_in_two_steps(work, target)
            sync(out)
            sync(work.parent)
            shutil.rmtree(work, ignore_errors=True)
        else:
            work.rename(target)
            sync(out)
    return target


def recover(out: Path) -> list[str]:
    """Remove what killed runs left in the workspace and of their state; call it while holding the lock on OUT.

    Where the system cannot exchange two folders, a replacement takes two renames; an older episode caught between
    them is put back first.

    Returns:
        Ids of episodes that were put back.

    Raises:
        StorageError: the leftovers cannot be removed.
    """
    parent, restored = workspaces(out), []
    with storage_errors("clean", parent):
        for path in sorted(parent.iterdir()) if parent.is_dir() else ():
            episode_id = path.name.removesuffix(".replaced")
            if episode_id != path.name and not (out / episode_id).exists():
                path.rename(out / episode_id)
                sync(out)
                restored.append(episode_id)
            elif path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        for path in parent.parent.glob(".*.json.*.partial"):
            if _STATE_PARTIAL.fullmatch(path.name) and path.is_file():
                path.unlink()
    return restored


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change places in one step; False where the system or file system has no such call."""
    if not sys.platform.startswith("linux"):
        return False
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(other))


def _replace_in_two_steps(work: Path, target: Path) -> None:
    aside = work.parent / f"{target.name}.replaced"
    if aside.exists():
        shutil.rmtree(aside)
    target.rename(aside)
    try:
        work.rename(target)
    except OSError:
        aside.rename(target)
        raise
    aside.rename(work)  # where publish() removes it
