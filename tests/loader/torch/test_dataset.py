"""The map-style dataset: what a sample is, which samples there are, and what is read for them."""

import os
import pickle
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from knonik_loader import ConfigError, PlanError, ShardedDataLoader, StorageError
from knonik_loader.engine.direct import DirectReader
from knonik_loader.engine.storage import LocalStorage
from knonik_loader.torch import KhlpDataset, KhlpIterableDataset, split_episodes
from knonik_loader.torch import packed as packed_module
from tests.support.huge import write_huge
from tests.support.packed import check_frames, write_packed
from tests.support.torching import samples


def test_collation_makes_the_loaders_batches(packed):
    keys = {"chunk_len": 4, "pad_missing": True}
    dataset = KhlpDataset(packed.manifest, **keys)
    with ShardedDataLoader(packed.config(framework="torch", shuffle_mode="none", **keys)) as loader:
        batches = list(loader)
    mine = list(DataLoader(dataset, batch_size=4))
    assert len(mine) == len(batches)
    for one, other in zip(mine, batches, strict=True):
        assert one.keys() == other.keys() - {"_dataset_name", "_dataset_names", "_stream_names"}
        for key, value in one.items():
            if torch.is_tensor(value):
                assert value.dtype == other[key].dtype
                assert torch.equal(value, other[key]), key
            else:
                assert list(value) == list(other[key]), key


def test_items_are_a_sequence(packed):
    dataset = KhlpDataset(packed.manifest, chunk_len=4)
    assert len(dataset) == sum(length - 3 for length in packed.lengths)
    assert dataset[-1]["_episode_ids"] == "episode_000002"
    assert dataset[np.int64(2)]["_frame_indices"] == dataset[torch.tensor(2)]["_frame_indices"] == 2
    for wrong in (len(dataset), -len(dataset) - 1):
        with pytest.raises(IndexError, match=f"of {len(dataset)}"):
            dataset[wrong]
    with pytest.raises(TypeError):
        dataset["0"]
    assert [sample["_frame_indices"] for sample in dataset][:3] == [0, 1, 2]
    assert (dataset.num_episodes, dataset.num_frames, dataset.fps) == (3, sum(packed.lengths), packed.fps)
    assert "samples of 3 episodes" in repr(dataset)


@pytest.mark.parametrize("episodes", [["episode_000001"], [1], ["episode_000002", 0]])
def test_some_episodes_are_those_of_the_whole(packed, episodes):
    keys = {"delta_timestamps": {"state": [-0.2, 0.0, 0.3]}, "pad_missing": True, "chunk_len": 2}
    whole = KhlpDataset(packed.manifest, **keys)
    some = KhlpDataset(packed.manifest, episodes=episodes, **keys)
    names = {name if isinstance(name, str) else f"episode_{name:06d}" for name in episodes}
    assert some.episodes == sorted(names)
    wanted = [sample for sample in whole if sample["_episode_ids"] in names]
    assert len(some) == len(wanted)
    for one, other in zip(some, wanted, strict=True):
        for key, value in one.items():
            assert torch.equal(value, other[key]) if torch.is_tensor(value) else value == other[key], key
    iterable = KhlpIterableDataset(packed.manifest, episodes=episodes, batch_size=5, rank=0, world_size=1, **keys)
    assert sorted(samples(iterable)) == sorted((s["_episode_ids"], s["_frame_indices"]) for s in wanted)


def test_splits_and_tasks_choose_episodes(many):
    train, val = (KhlpDataset(many.manifest, split=name) for name in ("train", "val"))
    assert train.episodes == [f"episode_{row:06d}" for row in range(7)]
    assert val.episodes == [f"episode_{row:06d}" for row in (7, 8, 9)]
    pick = KhlpDataset(many.manifest, tasks=["pick"])
    assert {sample["_language"] for sample in pick} == {"pick"}
    assert pick.episodes == [f"episode_{row:06d}" for row in (0, 2, 4, 6)]
    assert KhlpDataset(many.manifest, tasks=["place", "stack"], split="val").episodes == [
        "episode_000007",
        "episode_000009",
    ]
    splits = split_episodes(many.manifest)
    assert KhlpDataset(many.manifest, episodes=splits["val"]).episodes == val.episodes


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"episodes": ["episode_00001"]}, ConfigError, r"no episode 'episode_00001' \(did you mean"),
        ({"episodes": [10]}, ConfigError, "no episode 10; it has 10"),
        ({"episodes": [1, "episode_000001"]}, ConfigError, "'episode_000001' is there 2 times"),
        ({"episodes": "episode_000001"}, ConfigError, "a list of episodes"),
        ({"tasks": ["pik"]}, ConfigError, r"'pik' \(did you mean 'pick'\?\)"),
        ({"tasks": "pick"}, ConfigError, "a list of instructions"),
        ({"tasks": ["stack"], "split": "train"}, PlanError, "split='train', tasks="),
        ({"episodes": [], "tasks": None}, PlanError, r"episodes=\[\]"),
        ({"split": "test"}, PlanError, "'train', 'val'"),
        ({"chunk_length": 3}, ConfigError, r"unknown option 'chunk_length' \(did you mean 'chunk_len'\?\)"),
        ({"batch_size": 4}, ConfigError, "'batch_size'; here it is up to PyTorch"),
        ({"streams": 7}, ConfigError, "a list of streams or a mapping, got 7"),
        ({"chunk_len": 0}, ConfigError, "chunk_len"),
        ({"chunk_len": 100}, PlanError, "pad_missing"),
        ({"keys": "openpi"}, ConfigError, "'khlp' or 'lerobot'"),
        ({"image_dtype": "uint8"}, ConfigError, "belong to keys='lerobot'"),
        ({"streams": "state"}, ConfigError, r"write \['state'\]"),
        ({"streams": ["sate"]}, ConfigError, "did you mean 'state'"),
    ],
)
def test_mistakes_have_names(many, options, error, named):
    with pytest.raises(error, match=named):
        KhlpDataset(many.manifest, **options)


def test_a_missing_manifest_is_one_error(tmp_path):
    with pytest.raises(ConfigError, match="a path or URL, got None"):
        KhlpDataset(None)
    with pytest.raises(StorageError, match="does not exist"):
        KhlpDataset(tmp_path / "hlp_manifest.json")


@pytest.mark.parametrize(
    ("profile", "options"),
    [
        ("training_fast", {"streams": ["rgb_cam_1", "action"]}),
        ("training_compressed", {"image_key": "cam_0", "streams": {"rgb_cam_0": {}, "rgb_cam_1": {}, "state": {}}}),
        ("compact_video", {"streams": ["state"]}),
    ],
)
def test_bytes_of_other_streams_are_never_read(tmp_path, monkeypatch, profile, options):
    packed = write_packed(tmp_path, [40, 25], profile, cameras=3)
    read: list[tuple[str, int, int]] = []
    plain = LocalStorage.read_ranges

    def counting(self, key, ranges):
        read.extend((key, offset, offset + length) for offset, length in ranges)
        return plain(self, key, ranges)

    monkeypatch.setattr(LocalStorage, "read_ranges", counting)
    dataset = KhlpDataset(packed.manifest, chunk_len=2, stride=3, **options)
    batches = [
        default_collate(dataset.__getitems__(list(range(at, min(at + 8, len(dataset))))))
        for at in range(0, len(dataset), 8)
    ]
    names = set(dataset.stream_names)
    assert {key for key in batches[0] if not key.startswith("_")} == names
    opened = dataset.reader._source.dataset
    others = counted = 0
    for hlp, entry in enumerate(opened.manifest.hlps):
        index, key = opened.hlp_index(hlp), opened.hlp_key(hlp)
        payloads = [(begin, end) for name, begin, end in read if name == key and end <= entry.metadata_offset]
        counted += sum(end - begin for begin, end in payloads)
        for shard in range(index.num_shards):
            for stream in index.streams:
                table = index.records(shard, stream.stream_id)
                begin, end = int(table.offsets.min()), int((table.offsets + table.sizes).max())
                touched = any(b < end and begin < e for b, e in payloads)
                assert touched or stream.key not in names
                if stream.key not in names:
                    others += 1
                    assert not touched, (stream.key, shard)
    assert others > 0
    assert dataset.reader.bytes_read == counted


def test_a_pickle_is_small_and_opens_where_it_arrives(packed):
    dataset = KhlpDataset(packed.manifest, chunk_len=4, episodes=["episode_000000", "episode_000002"])
    first = dataset[0]
    data = pickle.dumps(dataset)
    assert len(data) < 2000
    copy = pickle.loads(data)
    assert copy._opened is None
    assert torch.equal(copy[0]["rgb_cam_0"], first["rgb_cam_0"])
    assert copy.episodes == dataset.episodes
    assert len(copy) == len(dataset)


def test_a_hundred_thousand_episodes_travel_light(tmp_path):
    packed = write_huge(tmp_path, 100_000)
    names = [f"episode_{row:06d}" for row in range(0, 100_000, 3)]
    for options in ({}, {"episodes": names}):
        data = pickle.dumps(KhlpDataset(packed, streams=["state"], **options))
        assert len(data) < 1 << 20
        copy = pickle.loads(data)
        assert copy.num_episodes == (len(names) if options else 100_000)


def test_a_dataset_that_was_packed_anew_is_not_mistaken(tmp_path):
    packed, other = (write_packed(tmp_path / str(n), [20], cameras=0, depth=False, seed=n) for n in (0, 1))
    data = pickle.dumps(KhlpDataset(packed.manifest))
    shutil.copytree(other.folder, packed.folder, dirs_exist_ok=True)
    with pytest.raises(StorageError, match="packed anew"):
        pickle.loads(data)[0]


def test_login_is_asked_for(packed, monkeypatch):
    monkeypatch.setenv("KNONIK_ISSUER", "https://id.example.org")
    with pytest.raises(PermissionError, match="multidataloader"):
        KhlpDataset(packed.manifest)


def test_a_damaged_frame_raises_in_the_worker_by_name(tmp_path):
    packed = write_packed(tmp_path, [30], cameras=1)
    file = next(tmp_path.glob("*.khlp"))
    damaged = bytearray(file.read_bytes())
    damaged[3000] ^= 0xFF
    file.write_bytes(damaged)
    dataset = KhlpDataset(packed.manifest)
    with pytest.raises(ValueError, match="crc32c"):
        for _ in DataLoader(dataset, batch_size=4, num_workers=1):
            pass


def test_irregular_clocks(tmp_path):
    rng = np.random.default_rng(5)
    clock = 3.0 + np.cumsum(rng.uniform(0.01, 0.06, 50))
    packed = write_packed(tmp_path, [50], cameras=1, depth=False, clocks={0: clock})
    keys = {"delta_timestamps": {"cam_0": [-0.05, 0.0]}, "pad_missing": True}
    dataset = KhlpDataset(packed.manifest, **keys)
    with ShardedDataLoader(packed.config(shuffle_mode="none", chunk_len=1, batch_size=50, **{**keys})) as loader:
        batch = next(iter(loader))
    mine = default_collate(list(dataset))
    np.testing.assert_array_equal(mine["rgb_cam_0"], batch["rgb_cam_0"])
    np.testing.assert_array_equal(mine["_timestamps"], clock)
    check_frames(packed, mine, {"state": np.arange(50)[:, None]})


def test_collation_sees_what_was_done_to_samples(many):
    dataset = KhlpDataset(many.manifest)
    together = dataset.__getitems__([3, 1, 2])
    whole = default_collate(together)
    assert whole["state"].data_ptr() == together[0]["state"].data_ptr()  # nothing was copied
    plain = default_collate([dict(sample) for sample in together])
    assert whole.keys() == plain.keys()
    for key, value in whole.items():
        assert torch.equal(value, plain[key]) if torch.is_tensor(value) else value == plain[key], key
    turned = default_collate(together[::-1])
    assert turned["_frame_indices"].tolist() == plain["_frame_indices"].tolist()[::-1]
    assert torch.equal(turned["state"], plain["state"].flip(0))
    assert len(default_collate(together[:2])["state"]) == 2
    together[1]["state"] = together[1]["state"] + 1
    assert torch.equal(default_collate(together)["state"][1], plain["state"][1] + 1)
    together = dataset.__getitems__([3, 1, 2])
    for sample in together:
        sample["more"] = 7
    assert default_collate(together)["more"].tolist() == [7, 7, 7]
    assert type(pickle.loads(pickle.dumps(together[0]))) is dict


def test_decode_threads(long, monkeypatch):
    """As configured, else PyTorch's; a worker takes its share of the cores."""
    asked = []

    def batch(reader, plan, threads):
        asked.append(threads)
        return original(reader, plan, threads)

    original = DirectReader.batch
    monkeypatch.setattr(DirectReader, "batch", batch)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    first = KhlpDataset(long.manifest, chunk_len=3)[7]
    second = KhlpDataset(long.manifest, chunk_len=3, num_decoders=3)[7]
    assert asked == [5, 3]
    assert all(torch.equal(second[key], value) for key, value in first.items() if isinstance(value, torch.Tensor))
    monkeypatch.setattr(packed_module, "get_worker_info", lambda: SimpleNamespace(num_workers=3))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(14)))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert packed_module._threads() == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert packed_module._threads() == 1
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    assert packed_module._threads() == 4


@pytest.mark.parametrize("threads", [1, 3])
def test_decode_threads_in_a_worker(long, threads):
    dataset = KhlpDataset(long.manifest, chunk_len=3, num_decoders=threads)
    plain = KhlpDataset(long.manifest, chunk_len=3)
    for got, wanted in zip(DataLoader(dataset, 16, num_workers=1), DataLoader(plain, 16), strict=True):
        assert all(torch.equal(got[key], wanted[key]) for key in wanted if key.startswith(("rgb_", "depth_", "action")))
