import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knonik_loader.errors import PlanError
from knonik_loader.plan.hashing import hash64
from tests.support.plans import make_index, make_sampler, order_of

LENGTHS = [13, 4, 60, 1, 101, 45, 90, 7]


def flat(order):
    return [sample for batch in order for sample in batch]


def global_batches(index, world_size, global_batch, epoch=0, **keys):
    """Batches over all ranks, ranks in order."""
    ranks = [
        order_of(
            make_sampler(index, rank=rank, world_size=world_size, batch_size=global_batch // world_size, **keys), epoch
        )
        for rank in range(world_size)
    ]
    assert len({len(order) for order in ranks}) == 1
    return [list(itertools.chain(*parts)) for parts in zip(*ranks, strict=True)]


class TestAnchors:
    def test_unshuffled_is_every_frame_of_every_episode_in_order(self):
        index = make_index(LENGTHS)
        for keys in ({"shuffle_mode": "none"}, {"decode_mode": "sequential"}):
            order = flat(order_of(make_sampler(index, **keys)))
            assert order == [(row, frame) for row, length in enumerate(LENGTHS) for frame in range(length)]

    @pytest.mark.parametrize("chunk", [1, 5, 13, 100])
    def test_a_chunk_has_to_fit_unless_it_is_padded(self, chunk):
        index = make_index(LENGTHS)
        whole = set(flat(order_of(make_sampler(index, chunk_len=chunk))))
        assert whole == {(row, at) for row, length in enumerate(LENGTHS) for at in range(length - chunk + 1)}
        padded = make_sampler(index, chunk_len=chunk, pad_missing=True)
        assert padded.num_samples == sum(LENGTHS)

    @pytest.mark.parametrize("stride", [2, 3, 7, 1000])
    def test_stride_is_the_distance_between_anchors(self, stride):
        index = make_index(LENGTHS)
        order = flat(order_of(make_sampler(index, stride=stride, chunk_len=2, shuffle_mode="none")))
        assert order == [(row, at) for row, n in enumerate(LENGTHS) for at in range(0, n - 1, stride)]

    def test_offsets_of_any_stream_limit_the_anchors(self):
        deltas = {"state": [-0.5, 0.0], "rgb_wrist": [0.1, 0.2], "action": [-0.1]}
        sampler = make_sampler(make_index([20, 60]), delta_timestamps=deltas, chunk_len=4, shuffle_mode="none")
        assert flat(order_of(sampler)) == [(1, at) for at in range(15, 54)]

    def test_offsets_that_leave_the_anchor_out_keep_it_in_the_episode(self):
        deltas = {key: [0.1] for key in ("rgb_cam", "wrist", "depth_cam", "state", "action")}
        sampler = make_sampler(make_index([10]), delta_timestamps=deltas, shuffle_mode="none")
        assert flat(order_of(sampler)) == [(0, at) for at in range(7)]

    @pytest.mark.parametrize("pad", [False, True])
    def test_measured_clocks_are_scanned(self, pad):
        # Episode 1 misses slots 20 and 21: what is asked for there is further than a period away or stands in.
        times = np.delete(np.arange(60), [20, 21, 22]) / 30
        index = make_index([50, 57, 40], clocks={1: times})
        sampler = make_sampler(index, delta_timestamps={"state": [0.1]}, pad_missing=pad, shuffle_mode="none")
        got = [frame for row, frame in flat(order_of(sampler)) if row == 1]
        # Slot 21 is two periods from both neighbours; it is asked for at slot 18.
        expected = [at for at in range(57) if at != 18 and at < 54]
        assert got == (list(range(57)) if pad else expected)

    def test_stride_over_a_gap_stays_on_its_grid(self):
        times = np.delete(np.arange(60), [20, 21, 22]) / 30
        sampler = make_sampler(
            make_index([57], clocks={0: times}), delta_timestamps={"state": [0.1]}, stride=6, shuffle_mode="none"
        )
        assert flat(order_of(sampler)) == [(0, at) for at in (0, 6, 12, 24, 30, 36, 42, 48)]

    def test_a_measured_clock_without_gaps_equals_a_regular_one(self):
        keys = {"delta_timestamps": {"state": [-0.2, 0.07]}, "shuffle_mode": "none"}
        plain = make_sampler(make_index([80, 30]), **keys)
        measured = make_sampler(make_index([80, 30], clocks={0: 5.0 + np.arange(80) / 30}), **keys)
        for step in range(len(plain)):
            one, other = plain.batch(0, step), measured.batch(0, step)
            assert np.array_equal(one.anchors, other.anchors)
            for key, window in one.windows.items():
                assert np.array_equal(window.frames, other.windows[key].frames)
                assert np.array_equal(window.valid, other.windows[key].valid)

    def test_episodes_of_different_rates_each_keep_their_own(self):
        sampler = make_sampler(
            make_index([40, 40], fps=[10.0, 50.0]), delta_timestamps={"state": [0.2]}, batch_size=8, pad_missing=True
        )
        for step in range(len(sampler)):
            plan = sampler.batch(0, step)
            wanted = plan.anchors + np.where(plan.episodes == 0, 2, 10)
            assert plan.windows["state"].frames[:, 0].tolist() == np.minimum(wanted, 39).tolist()
            assert plan.windows["state"].valid[:, 0].tolist() == (wanted < 40).tolist()

    def test_a_split_holds_its_episodes_only(self):
        index = make_index(LENGTHS, splits=["train", "val", "train", "train", "val", "train", "train", "train"])
        order = flat(order_of(make_sampler(index, split="val")))
        assert sorted(order) == [(row, at) for row in (1, 4) for at in range(LENGTHS[row])]


class TestMistakes:
    @pytest.mark.parametrize(
        ("keys", "message"),
        [
            ({"chunk_len": 200}, "chunk_len=200.*longest episode has 101; use a chunk_len of at most 101"),
            ({"delta_timestamps": {"state": [4.0]}}, r"delta_timestamps\['state'\] needs frames \+0 to \+120"),
            ({"delta_timestamps": {"state": [-3.0, 3.0]}}, r"-90 to \+90.*pad_missing=true"),
            ({"batch_size": 500, "drop_last": True}, "321 samples.*batch_size=500.*drop_last=false"),
            ({"rank": 0, "world_size": 400}, "321 samples.*world_size=400.*fewer ranks"),
            ({"rank": 0, "world_size": 9, "shard_by": "episode"}, "8 episodes can't serve world_size=9"),
            ({"split": "train"}, "split='train'.*packed without splits"),
        ],
    )
    def test_what_cannot_be_planned_says_what_to_change(self, keys, message):
        with pytest.raises(PlanError, match=message):
            make_sampler(make_index(LENGTHS), **keys)

    def test_an_empty_split_lists_those_that_exist(self):
        with pytest.raises(PlanError, match="it has the splits 'train', 'val'; choose another"):
            make_sampler(make_index([5, 5], splits=["val", "train"]), split="test")

    def test_batches_outside_the_pass_are_refused(self):
        sampler = make_sampler(make_index([8]))
        for epoch, step in ((0, 2), (0, -1), (-1, 0)):
            with pytest.raises(IndexError, match="batches 0 to 1"):
                sampler.batch(epoch, step)


class TestOrder:
    def test_a_shuffled_epoch_is_every_sample_once(self):
        order = flat(order_of(make_sampler(make_index(LENGTHS))))
        assert sorted(order) == [(row, at) for row, length in enumerate(LENGTHS) for at in range(length)]
        assert order != sorted(order)

    def test_seed_and_epoch_change_the_order_and_nothing_else_does(self):
        index = make_index(LENGTHS)
        orders = [
            flat(order_of(make_sampler(index, seed=seed), epoch)) for seed, epoch in [(0, 0), (0, 1), (1, 0), (1, 1)]
        ]
        assert len({tuple(order) for order in orders}) == 4
        assert len({tuple(sorted(order)) for order in orders}) == 1
        same = make_sampler(
            make_index(LENGTHS, seed=5, shard_size=9),
            num_decoders=3,
            precollate_batches=7,
            shuffle_mode="global_triplet_fast",
            epoch=9,
        )
        assert flat(order_of(same)) == orders[0]

    def test_any_batch_can_be_asked_for_alone_and_again(self):
        index = make_index(LENGTHS, clocks={2: np.arange(60) / 30 + 0.001 * (np.arange(60) % 3)})
        keys = {"delta_timestamps": {"state": [-0.1, 0.1]}, "pad_missing": True, "seed": 3}
        onward = make_sampler(index, **keys)
        plans = {(epoch, step): onward.batch(epoch, step) for epoch in range(2) for step in range(len(onward))}
        for epoch, step in reversed(plans):
            fresh, plan = make_sampler(index, **keys).batch(epoch, step), plans[epoch, step]
            assert np.array_equal(fresh.episodes, plan.episodes)
            assert np.array_equal(fresh.anchors, plan.anchors)
            assert np.array_equal(fresh.sample_seeds, plan.sample_seeds)
            assert all(np.array_equal(fresh.windows[key].frames, plan.windows[key].frames) for key in plan.windows)

    def test_sample_seeds_differ_between_samples_epochs_and_seeds(self):
        index = make_index(LENGTHS)
        seeds = [
            int(value)
            for seed, epoch in [(0, 0), (0, 1), (1, 0)]
            for sampler in [make_sampler(index, seed=seed)]
            for step in range(len(sampler))
            for value in sampler.batch(epoch, step).sample_seeds
        ]
        assert len(set(seeds)) == len(seeds)

    def test_sample_seeds_do_not_depend_on_the_world_size(self):
        index = make_index(LENGTHS)
        whole = make_sampler(index, batch_size=8)
        for rank in range(4):
            part = make_sampler(index, batch_size=2, rank=rank, world_size=4)
            assert np.array_equal(
                part.batch(1, 3).sample_seeds, whole.batch(1, 3).sample_seeds[2 * rank : 2 * rank + 2]
            )

    def test_batches_are_diverse(self):
        sampler = make_sampler(make_index([300] * 100), batch_size=64)
        episodes = [len(np.unique(sampler.batch(0, step).episodes)) for step in range(50)]
        assert 44 < np.mean(episodes) < 51  # 47.4 of 100 for independent draws


class TestRanks:
    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.integers(1, 40), min_size=1, max_size=12),
        st.integers(1, 8),
        st.integers(1, 5),
        st.booleans(),
        st.booleans(),
    )
    def test_ranks_cut_one_order_without_loss_or_repetition(self, lengths, world_size, size, drop_last, shuffle):
        index = make_index(lengths)
        total, whole = sum(lengths), size * world_size
        mode = "global_triplet" if shuffle else "none"
        tail = total % whole
        kept = 0 if drop_last or tail < world_size else tail
        if total // whole + bool(kept) == 0:
            with pytest.raises(PlanError):
                make_sampler(index, rank=0, world_size=world_size, batch_size=size, drop_last=drop_last)
            return
        keys = {"drop_last": drop_last, "shuffle_mode": mode}
        got = global_batches(index, world_size, whole, **keys)
        one = flat(order_of(make_sampler(index, batch_size=whole, shuffle_mode=mode)))
        assert flat(got) == one[: total - tail + kept]
        assert [len(batch) for batch in got] == [whole] * (total // whole) + [kept] * bool(kept)
        sampler = make_sampler(index, rank=0, world_size=world_size, batch_size=size, drop_last=drop_last)
        assert sampler.num_samples == len(flat(got))

    @pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6, 12])
    def test_the_order_is_the_same_for_every_world_size(self, world_size):
        index = make_index(LENGTHS)
        keys = {"seed": 7, "chunk_len": 2, "drop_last": True}
        assert global_batches(index, world_size, 12, epoch=2, **keys) == global_batches(index, 1, 12, epoch=2, **keys)

    def test_the_last_batch_is_split_to_within_one_sample(self):
        # 1003 samples, 4 on each of 2 ranks: 125 whole batches and 3 left.
        index = make_index([1003])
        sizes = [[len(b) for b in order_of(make_sampler(index, rank=r, world_size=2))] for r in range(2)]
        assert sizes == [[4] * 125 + [2], [4] * 125 + [1]]
        dropped = [len(make_sampler(index, rank=r, world_size=2, drop_last=True)) for r in range(2)]
        assert dropped == [125, 125]

    @pytest.mark.parametrize("world_size", [1, 2, 3, 8])
    @pytest.mark.parametrize("drop_last", [False, True])
    def test_by_episode_every_episode_is_on_one_rank(self, world_size, drop_last):
        index = make_index([30, 31, 29, 64, 5, 90, 30, 17, 30, 30])
        keys = {"shard_by": "episode", "world_size": world_size, "drop_last": drop_last, "batch_size": 3}
        samplers = [make_sampler(index, rank=rank, **keys) for rank in range(world_size)]
        assert len({len(sampler) for sampler in samplers}) == 1
        owners = {}
        seen = []
        for rank, sampler in enumerate(samplers):
            order = order_of(sampler)
            assert all(len(batch) == 3 for batch in order[:-1])
            assert 1 <= len(order[-1]) <= 3
            for episode, frame in flat(order):
                assert owners.setdefault(episode, rank) == rank
                seen.append((episode, frame))
        assert len(set(seen)) == len(seen) == samplers[0].num_samples
        if world_size == 1 and not drop_last:
            assert len(seen) == 356

    def test_by_episode_ranks_hold_about_equal_shares(self):
        index = make_index(np.random.default_rng(0).integers(50, 400, 200))
        keys = {"shard_by": "episode", "world_size": 8, "batch_size": 1}
        total = make_sampler(index, shard_by="episode", batch_size=1).num_samples
        assert make_sampler(index, rank=0, **keys).num_samples > 0.99 * total
        seeds = [make_sampler(index, rank=rank, **keys).batch(0, 0).sample_seeds.tolist() for rank in range(8)]
        assert len({seed for part in seeds for seed in part}) == 8


class TestSteps:
    def test_an_epoch_is_cut(self):
        index = make_index(LENGTHS)
        sampler = make_sampler(index, max_steps=5)
        assert len(sampler) == sampler.num_batches == 5
        assert order_of(sampler) == order_of(make_sampler(index))[:5]
        assert sampler.epochs_per_pass == 1

    def test_a_run_goes_on_into_the_next_epochs(self):
        index = make_index([10, 13])
        plain = make_sampler(index)
        sampler = make_sampler(index, max_steps=2 * len(plain) + 3)
        expected = order_of(plain, 4) + order_of(plain, 5) + order_of(plain, 6)[:3]
        assert order_of(sampler, 4) == expected
        assert sampler.epochs_per_pass == 3
        assert sampler.epoch_batches == len(plain)
        late = sampler.batch(4, len(plain))
        assert np.array_equal(late.sample_seeds, plain.batch(5, 0).sample_seeds)
        assert (late.epoch, late.step) == (4, len(plain))


class TestLocate:
    @pytest.mark.parametrize("shard_size", [1, 7, 45, 1000])
    def test_every_frame_is_found_in_its_shard(self, shard_size):
        index = make_index(LENGTHS, shard_size=shard_size)
        episodes = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
        frames = np.concatenate([np.arange(length) for length in LENGTHS])
        shards, rows = make_sampler(index).locate(episodes, frames)
        assert np.array_equal(index.shards.episode[shards], episodes)
        assert np.array_equal(index.shards.first_frame[shards] + rows, frames)
        assert ((rows >= 0) & (rows < index.shards.frames[shards])).all()


class TestIdentity:
    def test_it_is_shared_by_ranks_and_by_what_does_not_change_the_order(self):
        index = make_index(LENGTHS)
        one = make_sampler(index, batch_size=8)
        for keys in ({"num_decoders": 2}, {"shuffle_mode": "global_triplet_fast"}, {"epoch": 5}, {"max_steps": 9}):
            assert make_sampler(index, batch_size=8, **keys).digest == one.digest
        assert make_sampler(index, batch_size=2, rank=3, world_size=4).digest == one.digest

    @pytest.mark.parametrize(
        ("keys", "field"),
        [
            ({"seed": 1}, "seed"),
            ({"stride": 2}, "stride"),
            ({"shuffle_mode": "none"}, "shuffle"),
            ({"batch_size": 5}, "global_batch"),
            ({"chunk_len": 2}, "windows"),
            ({"pad_missing": True}, "pad_missing"),
            ({"drop_last": True}, "drop_last"),
            ({"shard_by": "episode"}, "shard_by"),
            ({"delta_timestamps": {"state": [0.1]}}, "windows"),
        ],
    )
    def test_it_differs_with_each_sampling_key(self, keys, field):
        index = make_index(LENGTHS)
        one, other = make_sampler(index), make_sampler(index, **keys)
        assert one.digest != other.digest
        assert one.identity[field] != other.identity[field]

    def test_it_differs_with_the_episodes_and_their_clocks(self):
        samplers = [
            make_sampler(index)
            for index in (
                make_index(LENGTHS),
                make_index([*LENGTHS, 3]),
                make_index(LENGTHS, clocks={0: np.arange(13) / 29}),
                make_index(LENGTHS, clocks={0: np.arange(13) / 28}),
            )
        ]
        assert len({sampler.digest for sampler in samplers}) == 4


def test_a_hundred_million_anchors_take_no_memory_of_their_own():
    index = make_index([100_000] * 1000, shard_size=10_000)
    make_sampler(index)
    tracemalloc.start()
    sampler = make_sampler(index, batch_size=64, seed=1)
    plans = [sampler.batch(epoch, step) for epoch in range(2) for step in (0, 12345, len(sampler) - 1)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sampler.num_samples == 100_000_000
    assert peak < 4_000_000
    assert len(np.unique(np.concatenate([plan.episodes * 100_000 + plan.anchors for plan in plans]))) == 6 * 64


def test_hashes_are_spread_over_all_bits():
    words = hash64(7, np.arange(4096))
    bits = (words[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    assert np.abs(bits.mean(0) - 0.5).max() < 0.04
