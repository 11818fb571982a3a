"""``on_error="skip"``: what can't be read is replaced by the same samples everywhere, and by nothing else."""

import logging
import resource
import shutil
from itertools import chain

import numpy as np
import pytest

from knonik_loader import ConfigError, KnonikError, MultiShardedDataLoader, ShardedDataLoader, StorageError
from knonik_loader.engine.repair import ATTEMPTS
from knonik_loader.engine.storage import LocalStorage
from knonik_loader.errors import ChecksumError
from tests.support.damage import flip_byte, needs, opened
from tests.support.packed import Packed, check_frames


@pytest.fixture
def damaged(every_profile, tmp_path) -> Packed:
    """One frame in the middle of episode 0 has a wrong byte."""
    shutil.copytree(every_profile.folder, tmp_path / "copy")
    packed = Packed(
        tmp_path / "copy" / "hlp_manifest.json", every_profile.lengths, every_profile.times, every_profile.fps
    )
    flip_byte(packed, "rgb_cam_1", 0, 22)
    return packed


def samples(batches) -> list[list]:
    return [list(zip(batch["_episode_ids"], batch["_frame_indices"].tolist(), strict=True)) for batch in batches]


def check_whole(packed, batches, chunk) -> None:
    for batch in batches:
        anchors = batch["_frame_indices"][:, None]
        check_frames(packed, batch, {key: anchors + np.arange(chunk) for key in batch["_stream_names"]})


def drain(loader) -> tuple[list, dict]:
    """The batches of a pass, and position → error of the others."""
    iterator, batches, errors = iter(loader), [], {}
    for position in range(len(loader)):
        try:
            batches.append(next(iterator))
        except KnonikError as error:
            errors[position] = error
    return batches, errors


@pytest.mark.parametrize(
    "keys", [{}, {"num_decoders": 4, "partial_decode_coalesce_batches": 6, "ram_cache_bytes": 10**6}]
)
def test_only_what_needs_the_bad_frame_is_replaced(damaged, keys, caplog):
    lost = needs(damaged, "rgb_cam_1", 0, 22)
    config = damaged.config(chunk_len=2, on_error="skip", **keys)
    with ShardedDataLoader(config, dataset_name="mine") as loader, caplog.at_level(logging.WARNING, "knonik_loader"):
        plans = [loader._sampler.batch(0, step) for step in range(len(loader))]
        batches = list(loader)
        stats = loader.stats()
    assert len(batches) == len(plans)
    check_whole(damaged, batches, 2)
    replaced = 0
    for plan, batch in zip(plans, batches, strict=True):
        for at, (episode, anchor) in enumerate(zip(plan.episodes.tolist(), plan.anchors.tolist(), strict=True)):
            same = (batch["_episode_ids"][at], int(batch["_frame_indices"][at])) == (f"episode_{episode:06d}", anchor)
            bad = episode == 0 and bool(lost & {anchor, anchor + 1})
            assert same != bad, (episode, anchor)
            replaced += bad
    told = [record for record in caplog.records if "is replaced" in record.getMessage()]
    assert replaced <= stats["skipped"] == len(told)
    assert stats["errors"] == 0
    first = told[0].getMessage()
    for part in ("epoch 0, batch ", "dataset 'mine', episode 'episode_000000'", "'rgb_cam_1', frame 22", "crc32c is"):
        assert part in first, (part, first)


def test_substitutes_are_the_same_on_every_rank_and_after_a_resume(damaged):
    keys = {"on_error": "skip", "chunk_len": 2, "drop_last": True}
    with ShardedDataLoader(damaged.config(batch_size=8, **keys)) as loader:
        whole = samples(loader)
        again = samples(loader)  # another epoch, other substitutes
        iterator = iter(loader)
        states = []
        for _ in range(len(loader)):
            states.append(loader.state_dict())
            next(iterator)
        loader.load_state_dict(states[0])
        third = samples(loader)
    assert whole != again
    ranks = []
    for rank in range(4):
        config = damaged.config(batch_size=2, rank=rank, world_size=4, num_decoders=rank + 1, **keys)
        with ShardedDataLoader(config) as loader:
            ranks.append(samples(loader))
            assert len(ranks[-1]) == len(whole)  # a skipped sample never makes a rank shorter
    assert [list(chain.from_iterable(parts)) for parts in zip(*ranks, strict=True)] == whole
    for step, state in enumerate(states):
        with ShardedDataLoader(damaged.config(batch_size=8, **keys)) as loader:
            loader.load_state_dict(state)
            assert samples(loader) == third[step:]


def test_raise_loses_only_the_batches_that_need_the_bad_frame(damaged):
    lost = needs(damaged, "rgb_cam_1", 0, 22)
    with ShardedDataLoader(damaged.config(chunk_len=1, batch_size=1, shuffle_mode="none")) as loader:
        batches, errors = drain(loader)
    for error in errors.values():
        assert isinstance(error, ChecksumError)
        assert "stream 'rgb_cam_1', frame 22:" in str(error)
        assert str(damaged.manifest) in str(error)
    check_whole(damaged, batches, 1)
    assert sorted(errors) == sorted(lost)


@pytest.mark.parametrize("stream", ["state", "depth_cam_0"])
def test_other_kinds_of_streams(packed, tmp_path, stream):
    shutil.copytree(packed.folder, tmp_path / "copy")
    copy = Packed(tmp_path / "copy" / "hlp_manifest.json", packed.lengths, packed.times, packed.fps)
    flip_byte(copy, stream, 1, 3)
    lost = needs(copy, stream, 1, 3)
    with ShardedDataLoader(copy.config(on_error="skip", chunk_len=1)) as loader:
        batches = list(loader)
    check_whole(copy, batches, 1)
    seen = {frame for name, frame in chain.from_iterable(samples(batches)) if name == "episode_000001"}
    assert seen == set(range(40)) - lost


@pytest.mark.parametrize("how", ["missing", "cut", "garbage"])
def test_an_unreadable_file(packed, tmp_path, how):
    shutil.copytree(packed.folder, tmp_path / "copy")
    copy = Packed(tmp_path / "copy" / "hlp_manifest.json", packed.lengths, packed.times, packed.fps)
    path = sorted(copy.folder.glob("*.khlp"))[1]
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-50])
    else:
        path.write_bytes(bytes(path.stat().st_size))
    with ShardedDataLoader(copy.config(on_error="skip", chunk_len=2)) as loader:
        batches = list(loader)
        assert len(batches) == len(loader)
        assert loader.stats()["skipped"] > 0
    check_whole(copy, batches, 2)
    hlps = np.concatenate([batch["_hlp_ids"] for batch in batches])
    assert 1 not in hlps


def test_when_nothing_is_readable_it_ends(packed, tmp_path):
    shutil.copytree(packed.folder, tmp_path / "copy")
    copy = Packed(tmp_path / "copy" / "hlp_manifest.json", packed.lengths, packed.times, packed.fps)
    for path in copy.folder.glob("*.khlp"):
        path.unlink()
    with ShardedDataLoader(copy.config(on_error="skip")) as loader:
        with pytest.raises(StorageError, match=rf"does not exist.*{ATTEMPTS} substitutes in a row are unreadable too"):
            next(iter(loader))
        assert loader.stats()["skipped"] >= ATTEMPTS * 4  # batches that are made ahead try as well


def test_a_store_out_of_reach_is_no_bad_sample(packed, monkeypatch):
    def refuse(self, key, ranges):
        error = StorageError(f"{key}: nobody answers")
        error.outage = True
        raise error

    with ShardedDataLoader(packed.config(on_error="skip")) as loader:
        monkeypatch.setattr(LocalStorage, "read_ranges", refuse)
        with pytest.raises(StorageError, match="nobody answers"):
            next(iter(loader))
        assert loader.stats()["skipped"] == 0


def test_a_mistake_of_augment_fn_is_no_bad_sample(packed):
    def wrong(sample):
        raise ValueError("no")

    config = packed.config(on_error="skip", augment_fn=wrong)
    with ShardedDataLoader(config) as loader, pytest.raises(ConfigError, match="ValueError: no"):
        next(iter(loader))


def test_a_part_of_a_file_that_can_not_be_read(packed, monkeypatch):
    """A bad sector: reads of one place fail, whichever other reads they are joined with."""
    dataset = opened(packed)
    rows, inside = dataset.locate(np.array([0]), np.array([20]))
    hlp, shard = int(dataset.index.shards.hlp[rows[0]]), int(dataset.index.shards.shard[rows[0]])
    bad = int(dataset.hlp_index(hlp).records(shard, 0).offsets[int(inside[0])])
    real, path = LocalStorage.read_ranges, dataset.hlp_key(hlp)

    def read_ranges(self, key, ranges):
        if key == path and any(offset <= bad < offset + length for offset, length in ranges):
            raise StorageError(f"{key} cannot be read: Input/output error")
        return real(self, key, ranges)

    monkeypatch.setattr(LocalStorage, "read_ranges", read_ranges)
    for keys in ({}, {"partial_decode_coalesce_batches": 8, "prefetch_shards": 64}):
        with ShardedDataLoader(packed.config(on_error="skip", chunk_len=1, **keys)) as loader:
            batches = list(loader)
        check_whole(packed, batches, 1)
        seen = {frame for name, frame in chain.from_iterable(samples(batches)) if name == "episode_000000"}
        assert seen == set(range(61)) - {20}
    with ShardedDataLoader(packed.config(chunk_len=1, shuffle_mode="none", batch_size=1)) as loader:
        iterator = iter(loader)
        for _ in range(20):
            next(iterator)
        with pytest.raises(StorageError, match=r"Input/output error \(wanted: .*HLP .*shard .*'episode_000000'"):
            next(iterator)
        next(iterator)


def test_in_a_mix_the_substitute_is_of_the_same_dataset(packed, tmp_path):
    shutil.copytree(packed.folder, tmp_path / "copy")
    copy = Packed(tmp_path / "copy" / "hlp_manifest.json", packed.lengths, packed.times, packed.fps)
    for frame in range(14):
        flip_byte(copy, "rgb_cam_0", 0, frame)

    def mix(manifest, **keys):
        shared = {key: value for key, value in packed.config(chunk_len=1).items() if key != "hlp_manifest"}
        datasets = [
            (name, {"loader": {"hlp_manifest": str(each)}, "streams": {}})
            for name, each in (("whole", packed.manifest), ("bad", manifest))
        ]
        return MultiShardedDataLoader(datasets=datasets, weights=[0.5, 0.5], loader_cfg=shared | keys)

    with mix(packed.manifest) as loader:
        plain = list(loader)
    with mix(copy.manifest, on_error="skip") as loader:
        batches = list(loader)
        assert loader.stats()["skipped"] >= 14
    ranks = []
    for rank in range(2):
        with mix(copy.manifest, on_error="skip", batch_size=2, rank=rank, world_size=2) as loader:
            ranks.append(samples(loader))
    assert [list(chain.from_iterable(parts)) for parts in zip(*ranks, strict=True)] == samples(batches)
    for batch, other in zip(batches, plain, strict=True):
        assert batch["_sample_dataset_names"] == other["_sample_dataset_names"]
        for at, name in enumerate(batch["_sample_dataset_names"]):
            mine = (batch["_episode_ids"][at], int(batch["_frame_indices"][at]))
            planned = (other["_episode_ids"][at], int(other["_frame_indices"][at]))
            lost = name == "bad" and planned[0] == "episode_000000" and planned[1] < 14
            assert (mine != planned) == lost
    check_whole(packed, batches, 1)


def test_too_few_descriptors_are_no_bad_sample(packed):
    with ShardedDataLoader(packed.config(on_error="skip")) as loader:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            with pytest.raises(StorageError, match="Too many open files"):
                next(iter(loader))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert loader.stats()["skipped"] == 0
