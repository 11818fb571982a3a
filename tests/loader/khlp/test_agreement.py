"""Manifest, sidecar and files say the same, or nobody is believed: the loader refuses, and inspect finds it."""

import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from crc32c import crc32c

from knonik_assets.packing.inspect import inspect_path
from knonik_loader import ShardedDataLoader
from knonik_loader.engine.dataset import open_dataset
from knonik_loader.engine.storage import LocalStorage
from knonik_loader.errors import FormatError
from knonik_loader.khlp import agreement
from knonik_loader.khlp.index import DatasetIndex, EpisodeTable, ShardTable, regular_clock
from knonik_loader.khlp.manifest import HlpEntry, IndexEntry, Manifest, StreamEntry
from tests.support.packed import Packed, edit_manifest, write_packed


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    return write_packed(
        tmp_path_factory.mktemp("agreement"), cameras=1, size=(80, 80), splits=["train", "val", "train"]
    )


@pytest.fixture
def copy(packed, tmp_path):
    shutil.copytree(packed.folder, tmp_path / "copy")
    return Packed(tmp_path / "copy" / "hlp_manifest.json", packed.lengths, packed.times, packed.fps)


def refused(copy, message):
    """The loader says so before it gives a wrong frame, and inspect says the same."""
    with pytest.raises(FormatError, match=message), ShardedDataLoader(copy.config(num_decoders=1)) as loader:
        list(loader)
    try:
        damage = inspect_path(copy.manifest)["damage"]
    except FormatError as error:
        damage = [str(error)]
    assert any(re.search(message, text) for text in damage)


def in_stream(**changes):
    return lambda data: data["streams"][0].update(changes)


def rate(data):
    data["fps"] = 25
    for stream in data["streams"]:
        stream["fps"] = 25


def one_twice(data):
    """The second entry is the first under another name, where a copy of the file lies too."""
    data["hlps"][1] = {**data["hlps"][0], "uri": "twin.khlp"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (rate, r"fps is 25, but 'episode_000000' has 30"),
        (lambda data: data.update(shard_size=15), "shard_size is 15, but a shard of 'episode_000000' has 16 frames"),
        (lambda data: data.update(shard_size=17), "shard_size is 17, but"),
        (lambda data: data.update(window_size=3), "window_size is 3, but"),
        (lambda data: data.update(window_size=1), "window_size is 1, but"),
        (lambda data: data.update(storage_profile="compact_video"), "storage_profile is compact_video, but it has"),
        (lambda data: data.update(num_episodes=4), "num_episodes is 4, but there are 3"),
        (lambda data: data.update(num_frames=111), "num_frames is 111, but there are 110"),
        (lambda data: data.update(splits={"train": 1}), "no split 'val'"),
        (one_twice, r"lists the file '0{32}' 2 times"),
        (in_stream(shape=[80, 81, 3]), "its streams: 'rgb_cam_0' differs"),
        (in_stream(codec="shdr"), "its streams: 'rgb_cam_0' differs"),
        (in_stream(name="wrist"), r"its streams: \['rgb_wrist', .*but it has \['rgb_cam_0'"),
        (in_stream(params={"quality": 3}), "its streams: 'rgb_cam_0' differs"),
        (lambda data: data["hlps"][0].update(hlp_id="ff" * 16), "its hlp_id is ff"),
        (lambda data: data["hlps"].reverse(), r"hlp_00000[0-9]\.khlp"),
    ],
)
def test_a_fact_that_is_none(copy, change, message):
    shutil.copy(copy.folder / "hlp_000000.khlp", copy.folder / "twin.khlp")
    edit_manifest(copy.manifest, change)
    refused(copy, message)


def with_index(copy, **columns):
    """Exchange columns of the sidecar's episode table, and sign everything anew."""
    path = copy.folder / "hlp_index.khli"
    index = DatasetIndex.from_bytes(path.read_bytes())
    table = {name: getattr(index.episodes, name) for name in EpisodeTable.__slots__}
    data = DatasetIndex(EpisodeTable(**{**table, **columns}), index.clocks, index.shards).to_bytes()
    path.write_bytes(data)
    edit_manifest(copy.manifest, lambda manifest: manifest["index"].update(bytes=len(data), crc32c=crc32c(data)))


def test_a_file_of_the_same_episodes_ingested_otherwise(copy):
    """Equal names, lengths and sizes: only digests of what the episodes were can tell."""
    digest = DatasetIndex.from_bytes((copy.folder / "hlp_index.khli").read_bytes()).episodes.digest.copy()
    digest[0, 0] ^= 1
    with_index(copy, digest=digest)
    refused(copy, "its 'episode_000000' was ingested otherwise")


def test_a_file_of_another_source(copy):
    with_index(copy, source_id=["source_0", "source_2", "source_1"])
    refused(copy, "its 'episode_00000[12]' was ingested otherwise, or from another source")


def test_a_file_on_another_clock(copy):
    with_index(copy, t0=np.array([12.5, 12.5, 12.5 + 1e-5]))
    refused(copy, "its 'episode_000002' runs on another clock")


def test_a_clock_of_its_own_is_compared_exactly(tmp_path):
    clock = np.cumsum(np.r_[0, np.random.default_rng(0).uniform(0.02, 0.05, 39)])
    packed = write_packed(tmp_path, lengths=(20, 40), cameras=0, depth=False, clocks={1: clock}, start=1.7e9)
    config = packed.config(chunk_len=1)
    with ShardedDataLoader(config) as loader:
        assert sum(len(batch["_timestamps"]) for batch in loader) == 60


@pytest.mark.parametrize("t0", [0.0, 1.7e9, -3e7, 1e10])
@pytest.mark.parametrize("fps", [29.97, 30.0, 1000.0])
def test_every_regular_clock_agrees_with_what_stands_for_it(t0, fps):
    """Whatever `regular_clock` lets pass as nominal is the same clock for whoever compares the two."""
    rng = np.random.default_rng(1)
    passed = 0
    for _ in range(300):
        times = t0 + np.arange(12) / fps + rng.choice((0.4e-6, 0.9e-6, 1.6e-6)) * rng.uniform(-1, 1, 12)
        if regular_clock(times, fps):
            passed += 1
            table = SimpleNamespace(t0=[times[0]], fps=[fps])
            index = SimpleNamespace(clocks={}, episodes=table)
            assert agreement._same_clock(index, 0, 5, times[5:])
            assert not agreement._same_clock(index, 0, 4, times[5:])
    assert passed > 20


class Counting(LocalStorage):
    """Local disk that notes every read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[str, int]] = []

    def read_ranges(self, key, ranges):
        self.reads += [(key, length) for _, length in ranges]
        return super().read_ranges(key, ranges)


def test_one_read_opens_a_file(packed):
    storage = Counting()
    dataset = open_dataset(storage, str(packed.manifest))
    assert [key.rpartition("/")[2] for key, _ in storage.reads] == ["hlp_manifest.json", "hlp_index.khli"]
    for number, entry in enumerate(dataset.manifest.hlps):
        storage.reads.clear()
        index = dataset.hlp_index(number)
        assert storage.reads == [(dataset.hlp_key(number), entry.bytes - entry.metadata_offset)]
        # the columns are views of what was read: nothing was copied
        assert not index.records(0, 0).sizes.flags.owndata
        storage.reads.clear()
        assert dataset.hlp_index(number) is index
        assert storage.reads == []


def test_ten_thousand_files_open_with_two_reads(tmp_path):
    files, shards = 10_000, 8
    rows = np.arange(files * shards)
    # 40 shards of 45 frames an episode, dealt out so that neighbours lie in different files
    episodes = len(rows) // 40
    index = DatasetIndex(
        EpisodeTable(
            episode_id=[f"episode_{e:06d}" for e in range(episodes)],
            source_id=[f"raw_{e}" for e in range(episodes)],
            length=np.full(episodes, 1800),
            split=[""] * episodes,
            regular=np.ones(episodes, bool),
            t0=np.zeros(episodes),
            fps=np.full(episodes, 30.0),
            language=[""] * episodes,
            digest=np.zeros((episodes, 32), np.uint8),
        ),
        {},
        ShardTable(
            *(c.astype(np.uint32) for c in (rows % files, rows // files, rows // 40, rows % 40 * 45, 0 * rows + 45))
        ),
    )
    data = index.to_bytes()
    (tmp_path / "hlp_index.khli").write_bytes(data)
    stream = StreamEntry(stream_id=0, kind="rgb", name="top", codec="kimg", shape=(8, 8, 3), dtype="uint8", fps=30)
    manifest = Manifest(
        dataset="large",
        storage_profile="training_fast",
        pack_mode="shard_batch",
        shard_size=45,
        window_size=shards,
        fps=30,
        seed=0,
        num_hlps=files,
        num_episodes=episodes,
        num_shards=len(rows),
        num_frames=1800 * episodes,
        streams=[stream],
        splits={},
        stats={},
        source_config_fingerprint="",
        pack_fingerprint="",
        index=IndexEntry(uri="hlp_index.khli", bytes=len(data), crc32c=crc32c(data)),
        hlps=[
            HlpEntry(
                uri=f"hlp_{n:06d}.khlp", hlp_id=f"{n:032x}", bytes=500, crc32c=0, num_shards=shards, metadata_offset=64
            )
            for n in range(files)
        ],
    )
    (tmp_path / "hlp_manifest.json").write_text(manifest.to_json())
    storage = Counting()
    dataset = open_dataset(storage, str(tmp_path / "hlp_manifest.json"))
    assert len(storage.reads) == 2
    assert dataset.index.num_frames == 3_600_000
    config = {"decode_mode": "random_access", "hlp_manifest": str(tmp_path / "hlp_manifest.json"), "chunk_len": 4}
    # none of the files is there: planning needs none of them
    with ShardedDataLoader({**config, "batch_size": 8, "rank": 0, "world_size": 1}) as loader:
        assert len(loader) == (1800 - 3) * episodes // 8
