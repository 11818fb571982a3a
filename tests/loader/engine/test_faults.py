"""Damaged files and stalled disks: the right error at the right batch, and never a wrong frame."""

import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from knonik_loader import DecodeError, FormatError, KnonikError, ShardedDataLoader, StorageError, base
from knonik_loader.engine.dataset import open_dataset
from knonik_loader.engine.storage import LocalStorage, open_storage
from knonik_loader.errors import BadMagicError, ChecksumError, TruncatedError, UnsupportedFeatureError
from tests.support.packed import Packed, check_frames


@pytest.fixture
def copy(packed, tmp_path) -> Packed:
    shutil.copytree(packed.folder, tmp_path / "copy")
    return Packed(tmp_path / "copy" / "hlp_manifest.json", packed.lengths, packed.times, packed.fps)


def flip(packed: Packed, stream: str, row: int) -> tuple[int, int, int, int]:
    """Flip one payload byte of a stream in the shard of episode 0's frame 16; gives (hlp, shard, first, frames)."""
    dataset = open_dataset(open_storage("local"), str(packed.manifest))
    shards, _ = dataset.locate(np.array([0]), np.array([16]))
    hlp, shard = int(dataset.index.shards.hlp[shards[0]]), int(dataset.index.shards.shard[shards[0]])
    stream_id = next(info.stream_id for info in dataset.streams if info.key == stream)
    table = dataset.hlp_index(hlp).records(shard, stream_id)
    at = int(table.offsets[row]) + int(table.sizes[row]) // 2
    with Path(dataset.hlp_key(hlp)).open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x40]))
    return hlp, shard, 16, 16


def drain(loader) -> tuple[list, list]:
    """Batches and errors of a pass, each with its position."""
    iterator, batches, errors, position = iter(loader), [], [], 0
    while True:
        try:
            batches.append((position, next(iterator)))
        except StopIteration:
            return batches, errors
        except KnonikError as error:
            errors.append((position, error))
        position += 1


@pytest.mark.parametrize(("stream", "row"), [("rgb_cam_1", 5), ("depth_cam_0", 5), ("state", 0)])
def test_a_flipped_byte_fails_its_batches_and_no_other(copy, stream, row):
    hlp, shard, _, _ = flip(copy, stream, row)
    config = copy.config(chunk_len=2, precollate_batches=4, num_decoders=3)
    with ShardedDataLoader(config) as loader:
        plans = [loader._sampler.batch(0, step) for step in range(len(loader))]
        batches, errors = drain(loader)
    touched = set(range(16, 32)) if stream == "state" else {21}
    hit = [
        step
        for step, plan in enumerate(plans)
        if any(e == 0 and touched & {a, a + 1} for e, a in zip(plan.episodes, plan.anchors.tolist(), strict=True))
    ]
    assert [position for position, _ in errors] == hit
    assert hit
    for position, error in errors:
        assert isinstance(error, ChecksumError), error
        text = str(error)
        for part in (
            str(copy.manifest),
            f"HLP {hlp} ",
            f"shard {shard},",
            "'episode_000000'",
            repr(stream),
            "crc32c is",
        ):
            assert part in text, (part, text)
        if stream != "state":
            assert "frame 21:" in text
        assert position in hit
    for position, batch in batches:
        assert batch["_frame_indices"].tolist() == plans[position].anchors.tolist()
        anchors = batch["_frame_indices"][:, None]
        check_frames(copy, batch, {key: anchors + np.arange(2) for key in batch["_stream_names"]})


def test_a_state_after_an_error_goes_on_behind_the_last_good_batch(copy):
    flip(copy, "rgb_cam_0", 0)
    config = copy.config(chunk_len=1, shuffle_mode="none")
    with ShardedDataLoader(config) as loader:
        iterator = iter(loader)
        for _ in range(4):
            next(iterator)
        with pytest.raises(ChecksumError):
            next(iterator)
        assert loader.state_dict()["step"] == 4
        assert next(iterator)["_frame_indices"].tolist() == [20, 21, 22, 23]
        assert loader.state_dict()["step"] == 6


def test_without_checksums_damage_never_passes_for_a_frame(copy):
    """The JPEG decoder is strict: what it would have to repair is an error that names the frame."""
    dataset = open_dataset(open_storage("local"), str(copy.manifest))
    shards, _ = dataset.locate(np.array([0]), np.array([16]))
    hlp, shard = int(dataset.index.shards.hlp[shards[0]]), int(dataset.index.shards.shard[shards[0]])
    table = dataset.hlp_index(hlp).records(shard, 0)
    with Path(dataset.hlp_key(hlp)).open("r+b") as file:
        file.seek(int(table.offsets[3]))
        file.write(bytes(int(table.sizes[3])))
    config = copy.config(chunk_len=1, shuffle_mode="none", verify_checksums=False)
    with ShardedDataLoader(config) as loader, pytest.raises(DecodeError, match=r"'rgb_cam_0', frame 19"):
        list(loader)


def test_a_truncated_file_says_so(copy):
    path = sorted(copy.folder.glob("*.khlp"))[0]
    path.write_bytes(path.read_bytes()[:-100])
    with ShardedDataLoader(copy.config()) as loader, pytest.raises(TruncatedError, match=path.name):
        list(loader)


def test_a_missing_file_says_so(copy):
    sorted(copy.folder.glob("*.khlp"))[0].unlink()
    with ShardedDataLoader(copy.config()) as loader, pytest.raises(StorageError, match="does not exist"):
        list(loader)


def test_files_that_were_exchanged_are_refused(copy):
    one, other = sorted(copy.folder.glob("*.khlp"))[:2]
    held = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(held)
    with ShardedDataLoader(copy.config()) as loader, pytest.raises(FormatError):
        list(loader)


def test_a_damaged_index_or_manifest_is_refused(copy):
    index = copy.folder / "hlp_index.khli"
    data = bytearray(index.read_bytes())
    data[len(data) // 2] ^= 1
    index.write_bytes(data)
    with pytest.raises(ChecksumError, match="hlp_index"):
        ShardedDataLoader(copy.config())
    index.write_bytes(data[:-1])
    with pytest.raises(TruncatedError, match="hlp_index"):
        ShardedDataLoader(copy.config())
    text = copy.manifest.read_text()
    for wrong, kind, said in (
        ("{", BadMagicError, "JSON"),
        ("[]", BadMagicError, "format_version"),
        (text.replace('"format_version": 1', '"format_version": 2'), UnsupportedFeatureError, "2"),
        (text.replace('"fps": 30', '"fps": "x"'), FormatError, "fps"),
        (text.replace('"num_hlps": ', '"num_hlps": 9'), ChecksumError, "changed after it was packed"),
    ):
        copy.manifest.write_text(wrong)
        with pytest.raises(kind, match=said):
            ShardedDataLoader(copy.config())


def test_a_path_that_is_no_manifest(copy):
    with pytest.raises(StorageError, match="is a directory"):
        ShardedDataLoader(copy.config(hlp_manifest=str(copy.folder)))
    with pytest.raises(StorageError, match="does not exist"):
        ShardedDataLoader(copy.config(hlp_manifest=str(copy.folder / "nope.json")))


@pytest.fixture
def stalled(monkeypatch):
    """Reads of payloads hang until the test is over."""
    release = threading.Event()
    real = LocalStorage.read_ranges

    def read_ranges(self, key, ranges):
        if key.endswith(".khlp"):
            release.wait(60)
        return real(self, key, ranges)

    monkeypatch.setattr(LocalStorage, "read_ranges", read_ranges)
    yield release
    release.set()


def test_shutdown_returns_while_the_storage_hangs(packed, stalled, monkeypatch):
    assert base._SHUTDOWN_S <= 4  # the rest of the 5 s that are promised is for what is not waited for
    monkeypatch.setattr(base, "_SHUTDOWN_S", 0.5)
    loader = ShardedDataLoader(packed.config())
    iterator = iter(loader)
    outcome = []

    def consume():
        try:
            next(iterator)
        except KnonikError as error:
            outcome.append(type(error).__name__)

    consumer = threading.Thread(target=consume)
    consumer.start()
    began = time.monotonic()
    loader.shutdown()
    assert time.monotonic() - began < 30  # a read hangs for a minute
    consumer.join(60)
    assert outcome == ["LoaderClosedError"]
    stalled.set()


def test_errors_come_in_the_order_of_batches(packed, monkeypatch):
    """The first read fails last: its error is still the first one out."""
    with ShardedDataLoader(packed.config()) as reference:
        first = reference._sampler.batch(0, 0)
        dataset = reference._engine.sources[0].dataset
        shards, _ = dataset.locate(first.episodes, first.anchors)
        slow = {dataset.hlp_key(int(hlp)) for hlp in dataset.index.shards.hlp[shards]}
    later = threading.Event()
    real = LocalStorage.read_ranges

    def read_ranges(self, key, ranges):
        if not key.endswith(".khlp"):
            return real(self, key, ranges)
        if key in slow and not later.is_set():
            later.wait(0.3)
            later.set()
        raise StorageError(f"{key}: gone")

    monkeypatch.setattr(LocalStorage, "read_ranges", read_ranges)
    with ShardedDataLoader(packed.config(precollate_batches=4)) as loader:
        batches, errors = drain(loader)
    assert not batches
    assert [position for position, _ in errors] == list(range(len(loader)))
    assert any(key in str(errors[0][1]) for key in slow)
