import math
import pickle
import zlib
from fractions import Fraction
from itertools import chain, combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knonik_loader.errors import ConfigError, PlanError
from knonik_loader.plan import mix_layout
from knonik_loader.plan.mix import MixedDataset, MixSampler
from knonik_loader.plan.mix_draws import Draws
from knonik_loader.plan.mix_layout import BatchLayout
from knonik_loader.plan.mixing import Mixture, exact_weights
from tests.support.plans import STREAMS, make_config, make_index

CHECKSUM = 282244493
"""Of one layout: a run goes on with the order that it was saved with, also with a later version."""
LENGTHS = {"a": [50, 31], "b": [7], "c": [20, 20, 20]}


def make_mix(lengths=LENGTHS, weights=(0.5, 0.3, 0.2), *, rank=0, world_size=1, own=None, **keys):
    config = make_config(rank=rank, world_size=world_size, mix=True, **keys)
    shares = exact_weights(weights)
    datasets = [
        MixedDataset(
            name,
            make_index(frames, seed=at),
            STREAMS,
            make_config(rank=rank, world_size=world_size, mix=True, **(keys | (own or {}).get(name, {}))),
            shares[at] * config.batch_size,
        )
        for at, (name, frames) in enumerate(lengths.items())
    ]
    return MixSampler(datasets, weights, config)


def samples(plan):
    return list(zip(plan.dataset.tolist(), plan.episodes.tolist(), plan.anchors.tolist(), strict=True))


def run(sampler, epochs=1):
    return [samples(sampler.batch(epoch, step)) for epoch in range(epochs) for step in range(len(sampler))]


def off_weight(layout, weights, block):
    """Whether any aligned block of this size has not the whole part of its share of each dataset, or one more."""
    for at, weight in enumerate(weights):
        counts = (layout == at).reshape(-1, block).sum(1)
        if counts.min() < math.floor(weight * block) or counts.max() > math.ceil(weight * block):
            return True
    return False


class TestLayout:
    @settings(max_examples=60, deadline=None)
    @given(st.tuples(st.integers(1, 60), st.integers(1, 60)), st.integers(2, 96), st.integers(0, 50))
    def test_two_datasets_are_within_one_sample_in_every_part_whatever_the_number_of_ranks(self, weights, size, step):
        exact = exact_weights(weights)
        layout = BatchLayout(exact, size)(Mixture(weights, size).counts(step))
        assert not [block for block in range(1, size + 1) if size % block == 0 and off_weight(layout, exact, block)]

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.integers(1, 97), min_size=3, max_size=6),
        st.sampled_from([8, 12, 24, 30, 36, 48, 60, 72, 96, 120]),
        st.integers(0, 9),
    )
    def test_so_are_more(self, weights, size, step):
        exact = exact_weights(weights)
        counts = Mixture(weights, size).counts(step)
        layout = BatchLayout(exact, size)(counts)
        assert np.bincount(layout, minlength=len(weights)).tolist() == counts.tolist()
        assert not [block for block in range(1, size + 1) if size % block == 0 and off_weight(layout, exact, block)]

    @pytest.mark.parametrize("parts", [(10, 3), (12, 4), (10, 5)])
    def test_every_mix_of_so_many_parts_is_for_one_to_eight_ranks(self, parts):
        number, datasets = parts
        mixes = [each for each in combinations_with_replacement(range(1, number), datasets) if sum(each) == number]
        assert len(mixes) >= 7
        for weights in mixes:
            exact = exact_weights(weights)
            for size in (24, 72):
                mixture, layout = Mixture(weights, size), BatchLayout(exact, size)
                for step in range(mixture.period):
                    one = layout(mixture.counts(step))
                    assert not [ranks for ranks in (1, 2, 3, 4, 6, 8) if off_weight(one, exact, size // ranks)], weights

    @pytest.mark.parametrize(
        ("weights", "size"), [((38, 3, 92, 55), 768), ((1, 2, 25), 1536), ((5, 6, 12, 21, 3, 11), 240)]
    )
    def test_so_are_batches_that_take_many_exchanges(self, weights, size):
        exact = exact_weights(weights)
        layout = BatchLayout(exact, size)(Mixture(weights, size).counts(7))
        assert not [block for block in range(1, size) if size % block == 0 and off_weight(layout, exact, block)]

    def test_where_the_search_ends_early_no_part_is_off_by_two(self, monkeypatch):
        monkeypatch.setattr(mix_layout, "_WORK", 1)
        weights, size = exact_weights([97, 61, 29, 7]), 120
        layout = BatchLayout(weights, size)(Mixture(weights, size).counts(0))
        blocks = [block for block in range(1, size) if size % block == 0]
        assert [block for block in blocks if off_weight(layout, weights, block)]
        for block in blocks:
            for at, weight in enumerate(weights):
                counts = (layout == at).reshape(-1, block).sum(1)
                assert max(abs(int(count) - weight * block) for count in counts) < 2

    def test_it_depends_on_nothing_else(self):
        weights, counts = exact_weights([5, 6, 12, 21]), np.array([27, 33, 65, 115])
        one = BatchLayout(weights, 240)
        one(np.array([27, 33, 66, 114]))
        copy = pickle.loads(pickle.dumps(one))
        assert one(counts).tolist() == copy(counts).tolist()
        assert zlib.crc32(one(counts).astype("<i8").tobytes()) == CHECKSUM


class TestMix:
    @pytest.mark.parametrize("weights", [(0.5, 0.3, 0.2), (7, 2, 1), (0.34, 0.33, 0.33)])
    @pytest.mark.parametrize("world", [1, 2, 4])
    def test_every_batch_on_every_rank_and_the_run_hold_the_weights(self, weights, world):
        mixes = [make_mix(weights=weights, rank=r, world_size=world, batch_size=5) for r in range(world)]
        exact = exact_weights(weights)
        total = np.zeros(3, np.int64)
        for number in range(300):
            epoch, step = divmod(number, len(mixes[0]))
            for mix in mixes:
                counts = np.bincount(mix.batch(epoch, step).dataset, minlength=3)
                for count, weight in zip(counts.tolist(), exact, strict=True):
                    assert abs(count - weight * 5) < 1
                total += counts
            for have, weight in zip(total.tolist(), exact, strict=True):
                assert abs(have - weight * 5 * world * (number + 1)) < 1

    @pytest.mark.parametrize("keys", [{}, {"multi_mix": "per_sample"}, {"planner_locality": "low_mem"}])
    @pytest.mark.parametrize("world", [2, 3, 4, 6])
    def test_the_order_is_one_for_every_world_size(self, keys, world):
        whole = run(make_mix(batch_size=24, **keys), 2)
        ranks = [run(make_mix(batch_size=24 // world, rank=r, world_size=world, **keys), 2) for r in range(world)]
        assert [list(chain.from_iterable(parts)) for parts in zip(*ranks, strict=True)] == whole

    @pytest.mark.parametrize("keys", [{"planner_locality": "ultra_low_mem"}, {"delta_cache_block_planning": "on"}])
    def test_it_is_where_shares_of_a_rank_are_no_whole_numbers(self, keys):
        """Windows and distances of a locality are counted in samples of the whole batch."""
        lengths = {"a": [300] * 6, "b": [200] * 5, "c": [90] * 3}
        keys |= {"max_steps": 60, "lengths": lengths}
        whole = run(make_mix(batch_size=24, **keys))
        ranks = [run(make_mix(batch_size=8, rank=rank, world_size=3, **keys)) for rank in range(3)]
        assert [list(chain.from_iterable(parts)) for parts in zip(*ranks, strict=True)] == whole

    def test_seeds_of_augmentation_follow_the_order(self):
        whole = make_mix(batch_size=12).batch(1, 3).sample_seeds.tolist()
        parts = [make_mix(batch_size=4, rank=r, world_size=3).batch(1, 3).sample_seeds.tolist() for r in range(3)]
        assert list(chain.from_iterable(parts)) == whole
        assert len(set(whole)) == 12
        assert make_mix(batch_size=12).batch(2, 3).sample_seeds.tolist() != whole

    def test_a_dataset_that_is_used_up_begins_anew_with_another_permutation(self):
        mix = make_mix(batch_size=10)  # b: 7 anchors, 3 a batch
        flat = [sample for batch in run(mix, 3) for sample in batch]
        rounds = [(episode, frame) for at, episode, frame in flat if at == 1]
        passes = [rounds[first : first + 7] for first in range(0, len(rounds) - 6, 7)]
        assert len(passes) > 10
        assert all(sorted(one) == [(0, frame) for frame in range(7)] for one in passes)
        assert len({tuple(one) for one in passes}) > 0.9 * len(passes)

    def test_longest_sees_every_dataset_in_every_epoch(self):
        mix = make_mix(batch_size=10, seed=4)
        for epoch in range(4):
            seen = {sample for step in range(len(mix)) for sample in samples(mix.batch(epoch, step))}
            assert {frame for at, _, frame in seen if at == 1} == set(range(7))
            assert len({sample for sample in seen if sample[0] == 2}) == 60  # 2 a batch: it decides
            assert len({sample for sample in seen if sample[0] == 0}) == 81
        assert len(mix) == 30

    def test_shortest_ends_with_the_first_dataset_that_was_seen(self):
        mix = make_mix(batch_size=10, multi_epoch="shortest")
        assert len(mix) == 3  # 7 anchors of b, 3 a batch
        before_it_repeats = make_mix(batch_size=10, multi_epoch="shortest", drop_last=True)
        assert len(before_it_repeats) == 2
        for epoch in range(3):
            seen = [s for step in range(2) for s in samples(before_it_repeats.batch(epoch, step))]
            assert len(set(seen)) == len(seen)

    def test_what_an_epoch_leaves_off_the_next_one_goes_on_with(self):
        mix = make_mix(batch_size=10, multi_epoch="shortest")
        seen = [sample for batch in run(mix, 6) for sample in batch if sample[0] == 0]
        assert len(set(seen[:81])) == 81

    def test_steps_is_exactly_so_many(self):
        mix = make_mix(batch_size=10, multi_epoch="steps", max_steps=11)
        assert len(mix) == 11
        first = [sample for batch in run(mix, 8) for sample in batch if sample[0] == 0]
        assert len(set(first[:81])) == 81
        with pytest.raises(IndexError):
            mix.batch(0, 11)

    def test_an_epoch_without_a_whole_batch_is_refused(self):
        with pytest.raises(PlanError, match=r"'b' is used up .*drop_last"):
            make_mix(batch_size=40, multi_epoch="shortest", drop_last=True)

    def test_weights_decide_how_long_an_epoch_is(self):
        by_batch = len(make_mix({"a": [100], "b": [100]}, (0.5, 0.5), batch_size=8))
        assert by_batch == 25
        assert len(make_mix({"a": [100], "b": [100]}, (3, 1), batch_size=8)) == 50

    def test_epochs_of_odd_lengths_still_see_the_dataset_that_decides(self):
        mix = make_mix({"a": [97], "b": [13]}, (0.61, 0.39), batch_size=7)
        for epoch in range(25):
            seen = {s for step in range(len(mix)) for s in samples(mix.batch(epoch, step)) if s[0] == 0}
            assert len(seen) == 97, epoch

    def test_episodes_stay_on_one_rank(self):
        lengths = {"a": [20] * 4, "b": [9, 8, 7]}
        mixes = [make_mix(lengths, (2, 1), rank=r, world_size=2, batch_size=6, shard_by="episode") for r in range(2)]
        assert len({len(mix) for mix in mixes}) == 1
        seen = [{(at, episode) for batch in run(mix, 2) for at, episode, _ in batch} for mix in mixes]
        assert not seen[0] & seen[1]
        assert seen[0] | seen[1] == {(0, e) for e in range(4)} | {(1, e) for e in range(3)}
        for mix in mixes:
            assert np.bincount(mix.batch(0, 1).dataset).tolist() == [4, 2]
        assert not set(mixes[0].batch(0, 0).sample_seeds.tolist()) & set(mixes[1].batch(0, 0).sample_seeds.tolist())

    def test_windows_have_one_length(self):
        with pytest.raises(ConfigError, match=r"'rgb_cam' has 1 frames a sample in 'a' and 2 in 'b'"):
            make_mix(own={"b": {"chunk_len": 2}})

    def test_offsets_are_resolved_at_each_datasets_own_rate(self):
        config = make_config(mix=True, delta_timestamps={"state": [0.0, 0.2]}, pad_missing=True, batch_size=6)
        parts = [
            MixedDataset(name, make_index([200], fps=fps), STREAMS, config, Fraction(3))
            for name, fps in (("slow", 10.0), ("fast", 50.0))
        ]
        mix = MixSampler(parts, [1, 1], config)
        for step in range(len(mix)):
            plan = mix.batch(0, step)
            window = plan.windows["state"]
            jump = np.where(plan.dataset == 0, 2, 10)
            inside = plan.anchors + jump < 200
            assert (window.frames[:, 1] == np.minimum(plan.anchors + jump, 199)).all()
            assert (window.valid == np.stack([np.ones(6, bool), inside], 1)).all()

    @pytest.mark.parametrize("mix", ["per_batch", "per_sample"])
    def test_a_batch_may_hold_nothing_of_a_dataset(self, mix):
        keys = {"delta_timestamps": {"state": [0.0, 0.1]}, "batch_size": 2, "multi_mix": mix, "max_steps": 40}
        sampler = make_mix(weights=(0.8, 0.1, 0.1), **keys)
        plans = [sampler.batch(0, step) for step in range(40)]
        assert any(2 not in plan.dataset for plan in plans)
        assert any(2 in plan.dataset for plan in plans)
        for plan in plans:
            frames = plan.windows["state"].frames
            assert (frames == plan.anchors[:, None] + [0, 3]).all()


class TestDraws:
    def test_each_position_is_drawn_by_itself_with_the_weights(self):
        draws = Draws(exact_weights([0.5, 0.3, 0.2]), seed=1)
        drawn = draws.datasets(0, 0, 200_000)
        counts = np.bincount(drawn)
        assert np.abs(counts / 200_000 - [0.5, 0.3, 0.2]).max() < 0.006
        pairs = np.bincount(drawn[:-1] * 3 + drawn[1:], minlength=9) / (len(drawn) - 1)
        assert np.abs(pairs - np.outer([0.5, 0.3, 0.2], [0.5, 0.3, 0.2]).ravel()).max() < 0.006
        assert (draws.datasets(0, 70_000, 70_010) == drawn[70_000:70_010]).all()
        assert (draws.datasets(1, 0, 100) != drawn[:100]).any()
        assert (Draws(exact_weights([0.5, 0.3, 0.2]), seed=2).datasets(0, 0, 100) != drawn[:100]).any()

    def test_counts_before_a_position_are_those_of_the_sequence(self):
        draws = Draws(exact_weights([2, 1]), seed=3)
        whole = draws.datasets(5, 0, 140_000)
        for position in (0, 1, 139_999, 65_536, 65_535, 131_073):
            assert draws.before(5, position).tolist() == np.bincount(whole[:position], minlength=2).tolist()
        assert draws.before(4, 10).sum() == 10

    def test_per_sample_goes_through_each_dataset(self):
        mix = make_mix(batch_size=10, multi_mix="per_sample")
        flat = [sample for batch in run(mix, 1) for sample in batch]
        for at, anchors in ((0, 81), (1, 7), (2, 60)):
            mine = [sample for sample in flat if sample[0] == at]
            assert len(set(mine[:anchors])) == min(anchors, len(mine))
        sizes = {sum(sample[0] == 1 for sample in batch) for batch in run(mix, 1)}
        assert len(sizes) > 3


@pytest.mark.parametrize("keys", [{}, {"multi_mix": "per_sample"}, {"shard_by": "episode"}])
def test_any_batch_can_be_planned_alone(keys):
    onward = run(make_mix({"a": [50, 31], "c": [20, 20]}, (2, 1), batch_size=6, **keys), 3)
    length = len(make_mix({"a": [50, 31], "c": [20, 20]}, (2, 1), batch_size=6, **keys))
    for number in range(0, len(onward), 7):
        alone = make_mix({"a": [50, 31], "c": [20, 20]}, (2, 1), batch_size=6, **keys)
        assert samples(alone.batch(*divmod(number, length))) == onward[number]


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"seed": 1}, "seed"),
        ({"batch_size": 8}, "global_batch"),
        ({"multi_mix": "per_sample"}, "multi_mix"),
        ({"multi_epoch": "shortest"}, "multi_epoch"),
        ({"max_steps": 3}, "max_steps"),
        ({"own": {"b": {"stride": 2}}}, "b.stride"),
        ({"own": {"b": {"seed": 5}}}, "b.seed"),
        ({"weights": (0.5, 0.25, 0.25)}, "weights"),
        ({"own": {"c": {"planner_locality": "low_mem"}}}, "c.planner_locality"),
    ],
)
def test_the_identity_names_what_an_order_depends_on(keys, named):
    one, other = make_mix().identity, make_mix(**keys).identity
    assert one == make_mix(num_decoders=3).identity
    assert next(key for key in one if one[key] != other[key]) == named
    assert make_mix().digest != make_mix(**keys).digest
