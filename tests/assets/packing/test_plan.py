"""Plans are pure: same facts and options, same shards, files, splits and digests."""

import dataclasses
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knonik_assets.configs.pack import PackOptions
from knonik_assets.packing.existing import behind, decisive
from knonik_assets.packing.facts import EpisodeFacts, StreamFacts
from knonik_assets.packing.plan import make_plan
from knonik_loader.errors import ConfigError, PackError
from knonik_loader.khlp.splits import split_of

STREAMS = (
    StreamFacts("rgb", "cam", (48, 64, 3)),
    StreamFacts("depth", "cam", (48, 64), quantization_mm=1.0),
    StreamFacts("numeric", "state", (3,), channel_names=("x", "y", "z")),
)


def episode(number, length=20, streams=STREAMS, **changes):
    facts = EpisodeFacts(
        episode_id=f"episode_{number:06d}",
        source_id=f"raw_{number}",
        length=length,
        fps=30.0,
        measured_fps=30.0,
        digest=bytes([number]) * 32,
        config_fingerprint="c",
        instruction="",
        shard_size=None,
        streams={stream.key: stream for stream in streams},
    )
    return dataclasses.replace(facts, **changes)


def options(**given):
    return PackOptions(dataset_name="d", **given)


def changed(index, **changes):
    """STREAMS with one of them altered."""
    return [dataclasses.replace(s, **changes) if i == index else s for i, s in enumerate(STREAMS)]


def test_every_frame_is_in_exactly_one_shard_and_shards_are_mixed():
    episodes = [episode(number, length) for number, length in enumerate((45, 46, 1, 90, 200))]
    plan = make_plan(episodes, options(window_size=2))
    assert plan.shard_size == 45
    frames = [
        (shard.episode, frame)
        for file in plan.files
        for shard in file.shards
        for frame in range(shard.first_frame, shard.first_frame + shard.frames)
    ]
    assert Counter(frames) == Counter((row, f) for row, facts in enumerate(episodes) for f in range(facts.length))
    assert [len(file.shards) for file in plan.files] == [2] * 5 + [1]
    assert [file.name for file in plan.files] == [f"hlp_{number:06d}.khlp" for number in range(6)]
    order = [shard.episode for file in plan.files for shard in file.shards]
    assert order != sorted(order)
    for file in plan.files:
        assert list(file.shards) == sorted(file.shards, key=lambda shard: (shard.episode, shard.first_frame))


def test_the_order_depends_on_the_seed_and_on_nothing_else():
    episodes = [episode(number, 100) for number in range(4)]
    shards = {
        seed: [file.shards for file in make_plan(episodes, options(seed=seed, window_size=2)).files] for seed in (0, 1)
    }
    assert shards[0] != shards[1]
    again = make_plan(episodes, options(seed=0, window_size=2, storage_profile="training_fast", fps=30))
    assert [file.shards for file in again.files] == shards[0]
    # pinned: a changed order would make every old plan another one
    assert [(s.episode, s.first_frame) for s in shards[0][0]] == [(1, 45), (2, 0)]


def test_what_decides_the_bytes_decides_the_fingerprint():
    episodes = [episode(0), episode(1)]
    base = make_plan(episodes, options(storage_profile="training_fast")).fingerprint
    assert make_plan(episodes, options(storage_profile="training_fast", shard_size=45)).fingerprint == base
    for change in (
        {"seed": 1},
        {"window_size": 63},
        {"shard_size": 44},
        {"fps": 29.97},
        {"pack_mode": "episode"},
        {"split": {"train": 1}},
        {"quality": 95},
        {"streams": "state"},
        {"resize": "rgb_cam=24x32"},
    ):
        assert make_plan(episodes, options(storage_profile="training_fast", **change)).fingerprint != base, change
    video = make_plan(episodes, options()).fingerprint
    assert make_plan(episodes, options(codec="h264", gop=10, chroma="420")).fingerprint == video
    others = [
        make_plan(episodes, options(**change)).fingerprint
        for change in ({"codec": "av1"}, {"gop": 9}, {"chroma": "444"}, {"quality": 22})
    ]
    others += [make_plan(episodes, PackOptions(dataset_name="other")).fingerprint, base]
    others += [make_plan(episodes, options(storage_profile="training_compressed")).fingerprint, video]
    assert len(set(others)) == len(others)
    for other in ([episodes[0]], [episodes[0], episode(1, digest=b"x" * 32)], [*episodes, episode(2)]):
        assert make_plan(other, options(storage_profile="training_fast")).fingerprint != base


def test_episode_mode_fills_windows_with_whole_episodes():
    lengths = (45, 46, 1, 90, 200)
    episodes = [episode(number, length) for number, length in enumerate(lengths)]
    plan = make_plan(episodes, options(pack_mode="episode", window_size=4))
    assert [[(shard.episode, shard.first_frame) for shard in file.shards] for file in plan.files] == [
        [(0, 0), (1, 0), (1, 45), (2, 0)],
        [(3, 0), (3, 45)],
        [(4, first) for first in (0, 45, 90, 135, 180)],
    ]
    assert (plan.num_frames, plan.num_shards) == (sum(lengths), 11)


def test_splits_and_order_of_old_episodes_stay_when_others_are_added():
    few, many = ([episode(number) for number in range(count)] for count in (6, 11))
    given = options(split={"train": 0.5, "val": 0.5}, window_size=1, seed=3)
    assert make_plan(many, given).splits[:6] == make_plan(few, given).splits
    order = [file.shards[0].episode for file in make_plan(few, given).files]
    assert [file.shards[0].episode for file in make_plan(many, given).files if file.shards[0].episode < 6] == order


def test_a_files_id_depends_on_what_is_in_it_alone():
    episodes = [episode(number) for number in range(3)]
    one = make_plan(episodes, options(pack_mode="episode", window_size=1)).files
    two = make_plan([*episodes, episode(3)], options(pack_mode="episode", window_size=1, seed=4)).files
    assert [file.hlp_id for file in one] == [file.hlp_id for file in two[:3]]
    assert len({file.hlp_id for file in two}) == 4


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"streams": STREAMS[1:]}, ["'rgb_cam'", "missing in episode_000002", "--streams depth_cam,state", "--exclude"]),
        ({"streams": changed(0, shape=(24, 64, 3))}, ["'rgb_cam'", "48x64x3 in 3", "24x64x3 in episode_000002", "--resize cam=HxW"]),
        ({"streams": changed(1, quantization_mm=2.0)}, ["'depth_cam'", "1.0", "2.0 in episode_000002"]),
        ({"streams": changed(2, shape=(4,), channel_names=None)}, ["'state'", "3 in 3", "4 in episode_000002"]),
        ({"streams": changed(2, channel_names=("x", "z", "y"))}, ["'state'", "x,y,z", "x,z,y in episode_000002"]),
        ({"fps": 15.0, "measured_fps": 15.0}, ["episode_000002 has 15", "3 of 4 episodes have 30", "--fps"]),
    ],
)  # fmt: skip
def test_episodes_that_differ_are_named_with_what_to_do(odd, words):
    episodes = [episode(0), episode(1), episode(2, **odd), episode(3)]
    with pytest.raises(PackError) as caught:
        make_plan(episodes, options())
    for word in words:
        assert word in str(caught.value), str(caught.value)
    make_plan([episodes[0], episodes[1], episodes[3]], options())


def test_resize_makes_sizes_agree_and_labels_may_be_missing():
    episodes = [
        episode(0),
        episode(1, streams=changed(0, shape=(24, 64, 3))),
        episode(2, streams=changed(2, channel_names=None)),
    ]
    plan = make_plan(episodes, options(resize="rgb_cam=24x32"))
    assert [stream.shape for stream in plan.streams] == [(24, 32, 3), (48, 64), (3,)]
    assert plan.streams[2].channel_names == ("x", "y", "z")


def test_a_bare_name_must_mean_one_stream():
    with pytest.raises(ConfigError, match="'cam' could mean depth_cam or rgb_cam"):
        make_plan([episode(0)], options(streams="cam"))
    with pytest.raises(ConfigError, match="did you mean 'state'"):
        make_plan([episode(0)], options(streams="stat"))
    with pytest.raises(ConfigError, match="resize: unknown RGB stream 'depth_cam'"):
        make_plan([episode(0)], options(resize="depth_cam=4x4"))
    with pytest.raises(ConfigError, match="resize: unknown RGB stream 'cam'"):
        make_plan([episode(0)], options(resize="cam=4x4", streams="state"))
    with pytest.raises(ConfigError, match="chroma must be one of 420"):
        make_plan([episode(0)], options(codec="av1", chroma="444"))


def test_jitter_of_short_episodes_is_no_other_rate():
    jittery = [episode(number, 20, measured_fps=30 * (1.02 if number % 2 else 0.98)) for number in range(6)]
    assert make_plan(jittery, options()).warnings == ()
    slow = [episode(0), episode(1, 400, measured_fps=28.0)]
    assert "1 of 2 episodes" in make_plan(slow, options()).warnings[0]
    assert "2 of 2 episodes" in make_plan([episode(0), episode(1)], options(fps=31)).warnings[0]


def test_splits_hold_on_average_whatever_their_order():
    fractions = {"train": 0.8, "val": 0.15, "test": 0.05}
    counts = Counter(split_of(7, f"episode {number}", fractions) for number in range(4000))
    for name, fraction in fractions.items():
        assert abs(counts[name] / 4000 - fraction) < 0.025
    turned = dict(reversed(fractions.items()))
    names = [f"e{number}" for number in range(200)]
    assert [split_of(0, n, fractions) for n in names] == [split_of(0, n, turned) for n in names]
    assert [split_of(0, n, fractions) for n in names] != [split_of(1, n, fractions) for n in names]
    assert split_of(0, "x", {}) == ""
    assert split_of(0, "x", {"all": 1.0}) == "all"
    # pinned: a changed rule would move episodes between splits of datasets that exist
    assert [split_of(0, f"raw_{n}", {"train": 0.5, "val": 0.5})[0] for n in range(8)] == list("ttvtvvtt")


def test_an_empty_train_split_is_refused_and_another_warned_of():
    episodes = [episode(number) for number in range(3)]
    with pytest.raises(PackError, match=r"falls into the split 'train'.*--seed"):
        make_plan(episodes, options(split="train=0.5,val=0.5", seed=2))
    plan = make_plan(episodes, options(split="train=0.999,val=0.001"))
    assert "split 'val'" in plan.warnings[0]


def test_a_split_with_less_than_half_of_what_was_asked_for_is_warned_of():
    fractions, names = {"train": 0.75, "val": 0.25}, [episode(number).source_id for number in range(4)]
    dealt = {seed: [split_of(seed, name, fractions) for name in names].count("train") for seed in range(200)}
    uneven = next(seed for seed, train in dealt.items() if train == 1)
    even = next(seed for seed, train in dealt.items() if train == 3)
    episodes = [episode(number) for number in range(4)]
    (said,) = make_plan(episodes, options(split=fractions, seed=uneven)).warnings
    assert said.startswith("Only 1 of 4 episodes fall into the split 'train', where 0.75 asks for 3: ")
    assert "--seed" in said
    assert make_plan(episodes, options(split=fractions, seed=even)).warnings == ()


PLANS = [make_plan([episode(0)], options(seed=seed)) for seed in range(4)]
WORKS = st.fixed_dictionaries(
    {},
    optional={
        "generation": st.one_of(st.integers(1, 9), st.sampled_from([None, "2"])),
        "plan": st.sampled_from([None, "elsewhere", *(plan.fingerprint for plan in PLANS[:3])]),
    },
)


@given(st.lists(WORKS, max_size=8), st.integers(1, 9))
def test_two_of_the_abandoned_runs_decide_for_every_plan(works, lowest):
    kept = decisive(works)
    assert len(kept) <= 2
    assert [work for work in kept if work not in works] == []
    for plan in PLANS:
        assert behind(lowest, kept, plan) == behind(lowest, works, plan)
