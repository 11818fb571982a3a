"""Damaged raw datasets: each is refused with a typed error or read, the episodes that were not touched as before."""

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import h5py
import numpy as np

from knonik_assets.configs.load import load_ingest_config
from knonik_assets.sources.base import EncodedImage, Source
from knonik_assets.sources.images import decode_image
from knonik_assets.sources.registry import open_source
from knonik_loader.errors import KnonikError
from tests.support import calvin_data, d3il_data, rlds_data, zarr_data
from tests.support.stamps import episode_arrays

__all__ = ["FAMILIES", "outcome"]

ROWS = 4


@dataclass(frozen=True)
class Family:
    """How to write a small dataset, how to read it, and whose each file is."""

    write: Callable[[Path], None]
    config: dict
    owner: Callable[[str], str | None] = lambda name: None
    """File → the only episode that it can spoil; None where it belongs to all."""
    root: str = "."
    checked: bool = False
    """Whether the format has check sums: whatever is read is then what was written."""


def _jpeg(picture):
    from tests.assets.sources.support import jpeg

    return jpeg(picture)


def _png(picture):
    from tests.assets.sources.support import png

    return png(picture)


def _hdf5(root: Path) -> None:
    for episode in range(3):
        found = episode_arrays(episode, ROWS)
        encoded = [np.frombuffer(_jpeg(picture), np.uint8) for picture in found["cam_1"]]
        with h5py.File(root / f"episode_{episode}.hdf5", "w", libver=("earliest", "latest")[episode % 2]) as file:
            chunks = (1, 96, 112, 3)
            file.create_dataset("observations/images/a", data=found["cam_0"], chunks=chunks, compression="gzip")
            rows = file.create_dataset("observations/images/b", (ROWS,), h5py.vlen_dtype(np.uint8))
            for place, row in enumerate(encoded):
                rows[place] = row
            file["observations/qpos"], file["action"] = found["state"], found["action"]
            file.attrs["language_instruction"] = "go"


def _demos(root: Path) -> None:
    with h5py.File(root / "task_demo.hdf5", "w") as file:
        for demo in range(3):
            found = episode_arrays(demo, ROWS)
            group = file.create_group(f"data/demo_{demo}")
            group["obs/agentview_rgb"], group["actions"] = found["cam_0"], found["action"]


def _npz(root: Path) -> None:
    for episode in range(3):
        save = (np.savez, np.savez_compressed)[episode % 2]
        save(root / f"episode_{episode}.npz", **episode_arrays(episode, ROWS))


def _zarr(root: Path) -> None:
    for episode in range(3):
        zarr_data.episode(root / f"episode_{episode}", episode, ROWS, 2 + episode % 2)


def _zarr_zip(root: Path) -> None:
    for episode in range(3):
        store = zarr_data.episode(root / "store", episode, ROWS, 2 + episode % 2)
        zarr_data.zipped(store, root / f"episode_{episode}.zarr.zip")


def _zarr_shards(root: Path) -> None:
    import zarr

    for episode in range(2):
        store = zarr_data.group(root / f"episode_{episode}", 3)
        for name, values in episode_arrays(episode, 8, 1).items():
            if values.ndim > 1:
                zarr.create_array(
                    str(store / name),
                    shape=values.shape,
                    dtype=values.dtype,
                    chunks=(1 + episode, *values.shape[1:]),
                    shards=(4, *values.shape[1:]),
                    config={"write_empty_chunks": True},
                )[:] = values


def _replay(root: Path) -> None:
    store = zarr_data.replay_buffer(root / "a.zarr", [ROWS, 3, 5])
    zarr_data.picture_array(store, "data.wrist", episode_arrays(9, ROWS + 8, 1)["cam_0"], "jpegxl")
    zarr_data.picture_array(store, "data.top", episode_arrays(8, ROWS + 8, 1)["cam_0"], "jpeg2k")


def _robot(root: Path) -> None:
    from tests.assets.sources.test_zarr import real_robot

    real_robot(root, lengths=(3, 4))


def _calvin(root: Path) -> None:
    calvin_data.calvin(root, [(100, 103), (200, 203)], [(100, 102, "go"), (200, 203, "stop")])


def _calvin_owner(name: str) -> str | None:
    if not name.startswith("episode_"):
        return None
    return "0000100-0000103" if int(name[8:15]) < 200 else "0000200-0000203"


def _d3il(root: Path) -> None:
    for episode in range(3):
        d3il_data.record(root / "aligning", episode, ROWS, protocol=(2, 4, 5)[episode])


def _d3il_owner(name: str) -> str:
    return Path(name).stem if name.endswith(".pkl") else Path(name).parent.name


def _rlds(root: Path) -> None:
    from tests.support.zarr_data import near_depth

    def record(number):
        return rlds_data.step_leaves(number, ROWS, _png, _jpeg, near_depth(ROWS, number))

    rlds_data.dataset(root, [[record(0), record(1)], [record(2)]])


def _staged(root: Path) -> None:
    found = episode_arrays(0, ROWS)
    (root / "top").mkdir()
    for place, picture in enumerate(found["cam_0"]):
        np.save(root / "top" / f"frame_{place:06d}.npy", picture)
    np.save(root / "action.npy", found["action"])
    np.save(root / "timestamps.npy", found["timestamps"])


def _lerobot_v2(root: Path) -> None:
    from tests.assets.sources.support import V2

    V2(root / "set", [ROWS, ROWS + 1, ROWS + 2], ("left",)).write()


def _lerobot_v2_owner(name: str) -> str | None:
    return str(int(Path(name).stem.split("_")[1])) if "chunk-" in name else None


def _lerobot_v3(root: Path) -> None:
    from tests.assets.sources.support import V3

    V3(root / "set", [ROWS, ROWS + 1, ROWS + 2], {"left": [1, 2]}, [2, 1]).write()


def _bags(root: Path) -> None:
    """A recording of every container, with raw and compressed pictures, video-free."""
    from tests.assets.sources.test_ros_contract import recording

    for place, how in enumerate(("bag", "bag lz4", "mcap", "mcap storage", "mcap file", "sqlite3", "sqlite3 message")):
        folder = root / f"run_{place}"
        folder.mkdir()
        made = recording(how, place).write(root / f"made_{place}", how)
        if made.is_file():
            made.rename(folder / made.name)
        else:
            folder.rmdir()
            made.rename(folder)


STREAMS = {"rgb": {"top": {"dir": "top"}}, "numeric": {"action": {"path": "action.npy"}}}
FAMILIES = {
    "hdf5": Family(_hdf5, {"dir_type": "episodic", "data_type": "hdf5"}, lambda name: Path(name).stem),
    "demos": Family(_demos, {"dir_type": "hdf5"}),
    "npz": Family(_npz, {"dir_type": "episodic", "data_type": "npy"}, lambda name: Path(name).stem, checked=True),
    "zarr": Family(_zarr, {"dir_type": "episodic", "data_type": "zarr"}, lambda name: name.split("/")[0]),
    "zarr_shards": Family(_zarr_shards, {"dir_type": "episodic", "data_type": "zarr"}, lambda name: name.split("/")[0]),
    "zarr_zip": Family(
        _zarr_zip,
        {"dir_type": "episodic", "data_type": "zarr"},
        lambda name: name.split(".")[0],
        checked=True,
    ),
    "replay": Family(_replay, {"dir_type": "zarr"}),
    "robot": Family(_robot, {"dir_type": "zarr"}),
    "calvin": Family(_calvin, {"dir_type": "calvin"}, _calvin_owner),
    "d3il": Family(_d3il, {"dir_type": "d3il"}, _d3il_owner, root="aligning"),
    "rlds": Family(_rlds, {"dir_type": "rlds"}),
    "lerobot_v2": Family(_lerobot_v2, {"dir_type": "lerobot_v2"}, _lerobot_v2_owner, root="set"),
    "lerobot_v3": Family(_lerobot_v3, {"dir_type": "lerobot_v3"}, root="set"),
    "rosbag": Family(_bags, {"dir_type": "rosbag"}, lambda name: name.split("/")[0]),
    "npy_separate": Family(_staged, {"dir_type": "npy_separate", "timestamps": "timestamps.npy", "streams": STREAMS}),
}


def _read(source: Source) -> tuple[dict[str, str], list[KnonikError]]:
    """Digest of every episode that can be read whole, and the errors of the others."""
    found: dict[str, str] = {}
    errors: list[KnonikError] = []
    try:
        refs = source.episodes()
    except KnonikError as error:
        return {}, [error]
    for ref in refs:
        digest = hashlib.sha256()
        try:
            with source.open(ref) as episode:
                for spec in episode.streams:
                    digest.update(repr((spec.kind, spec.name, spec.shape)).encode())
                    if spec.kind == "numeric":
                        rows = episode.numeric(spec)
                        assert rows.shape == (spec.length, *spec.shape)
                        assert rows.dtype == np.float32
                        digest.update(rows.tobytes())
                        continue
                    count = 0
                    for frame in episode.frames(spec):
                        picture = decode_image(frame) if isinstance(frame, EncodedImage) else frame
                        assert picture.shape == spec.shape
                        digest.update(picture.tobytes())
                        count += 1
                    assert count == spec.length
        except KnonikError as error:
            errors.append(error)
        else:
            found[ref.source_id.rsplit("/", 1)[-1]] = digest.hexdigest()
    return found, errors


@cache
def _prepared(name: str) -> tuple[Path, dict[str, str], tuple[str, ...]]:
    """A dataset of the family on disk, what is in it, and its files."""
    folder = Path(tempfile.mkdtemp(prefix=f"mutations-{name}-"))
    FAMILIES[name].write(folder)
    known, errors = _read(_source(name, folder))
    assert known
    assert not errors, errors
    files = tuple(sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()))
    return folder, known, files


def _source(name: str, folder: Path) -> Source:
    return open_source(load_ingest_config(FAMILIES[name].config), folder / FAMILIES[name].root)


def forget(name: str) -> None:
    """Remove a family's files."""
    shutil.rmtree(_prepared(name)[0], ignore_errors=True)
    _prepared.cache_clear()


def _mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """Cut, flipped, overwritten, with a wrong number in it, or with something put in or taken out."""
    how = rng.integers(8)
    size = len(data)
    if how == 0 or not size:
        return data[: rng.integers(size + 1)]
    out = bytearray(data)
    at = int(rng.integers(min(size, 600) if rng.random() < 0.5 else size))  # headers are at the beginning
    if how in (1, 2):
        for place in rng.integers(0, size, 1 + rng.integers(8)):
            out[place] ^= 1 << int(rng.integers(8))
    elif how == 3:
        out[at] ^= 1 << int(rng.integers(8))
    elif how == 4:
        width = int(rng.choice([1, 2, 4, 8]))
        value = int(rng.choice([0, 1, 255, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1], 1)[0])
        out[at : at + width] = (value % 256**width).to_bytes(width, "little")
    elif how == 5:
        out[at : at + int(rng.integers(1, 4096))] = b""
    elif how == 6:
        out[at:at] = rng.bytes(int(rng.integers(1, 64)))
    else:
        length = int(rng.integers(1, 512))
        out[at : at + length] = b"\0" * len(out[at : at + length])
    return bytes(out)


def outcome(name: str, seed: int, number: int) -> str:
    """Damage one file of a family's dataset and read all of it.

    Returns:
        ``refused`` where something failed with a typed error, ``read`` where everything was readable.

    Raises:
        AssertionError: an episode that was not touched is lost or another, or damage went unseen under a check sum.
    """
    folder, known, files = _prepared(name)
    family = FAMILIES[name]
    rng = np.random.default_rng([seed, number])
    victim = files[int(rng.integers(len(files)))]
    path = folder / victim
    data = path.read_bytes()
    try:
        if rng.random() < 0.05:
            path.unlink()
        else:
            path.write_bytes(_mutated(data, rng))
        found, errors = _read(_source(name, folder))
    finally:
        path.write_bytes(data)
    owner = family.owner(victim)
    for episode, digest in known.items():
        if owner is not None and episode != owner:
            assert found.get(episode) == digest, f"{episode} is not what it was though only {victim} was damaged"
        elif family.checked and episode in found:
            assert found[episode] == digest, f"{episode} was read with a change in {victim} unseen"
    for error in errors:
        assert str(error).strip(), "an error without words"
    return "refused" if errors else "read"
