"""The sidecar: it comes back as it was, contradicts itself never, and knows a regular clock when it sees one."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knonik_loader.errors import FormatError
from knonik_loader.khlp.index import DatasetIndex, EpisodeTable, ShardTable, regular_clock
from tests.loader.khlp.make_golden import index_sample


@pytest.mark.parametrize("fps", [30.0, 29.97, 7.5, 50.0, 1000.0, 1 / 3])
def test_nominal_clocks_are_regular(fps):
    ideal = 1e9 + np.arange(5000) / fps
    assert regular_clock(ideal, fps)
    assert regular_clock(np.round(ideal, 6), fps)
    assert regular_clock(ideal[:1], fps)


def test_clocks_off_by_more_than_a_microsecond_are_not():
    times = np.arange(100) / 30
    times[50] += 2e-6
    assert not regular_clock(times, 30.0)
    assert not regular_clock(np.arange(1000) / 29.97, 30.0)
    assert regular_clock(np.round(np.arange(100) / 30, 6), 30.0)


def test_it_comes_back():
    index = index_sample()
    again = DatasetIndex.from_bytes(index.to_bytes())
    assert again.episodes.episode_id == ["episode_0", "episode_1"]
    assert again.episodes.split == ["train", "val"]
    assert again.episodes.language == index.episodes.language
    np.testing.assert_array_equal(again.episodes.digest, index.episodes.digest)
    np.testing.assert_array_equal(again.clocks[1], index.clocks[1])
    assert again.num_frames == 10
    np.testing.assert_array_equal(again.frame_times(1), index.clocks[1])
    np.testing.assert_allclose(again.frame_times(0), np.arange(7) / 30)


@st.composite
def indices(draw):
    count = draw(st.integers(1, 6))
    lengths = draw(st.lists(st.integers(1, 20), min_size=count, max_size=count))
    regular = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    texts = st.text(max_size=6)
    names = draw(st.lists(texts, min_size=count, max_size=count, unique=True))
    rows = []
    for episode, length in enumerate(lengths):
        first = 0
        while first < length:
            frames = draw(st.integers(1, length - first))
            rows.append((episode, first, frames))
            first += frames
    order = draw(st.permutations(range(len(rows))))
    return DatasetIndex(
        EpisodeTable(
            names,
            draw(st.lists(texts, min_size=count, max_size=count)),
            np.array(lengths, np.int64),
            draw(st.lists(st.sampled_from(["", "train", "val"]), min_size=count, max_size=count)),
            np.array(regular),
            np.array(draw(st.lists(st.floats(-1e9, 1e9), min_size=count, max_size=count))),
            np.array(draw(st.lists(st.floats(0.01, 1000), min_size=count, max_size=count))),
            draw(st.lists(texts, min_size=count, max_size=count)),
            np.frombuffer(draw(st.binary(min_size=32 * count, max_size=32 * count)), np.uint8).reshape(count, 32),
        ),
        {row: np.linspace(0, 1, lengths[row]) for row in range(count) if not regular[row]},
        ShardTable(
            np.array([place // 2 for place in order], np.uint32),
            np.array([place % 2 for place in order], np.uint32),
            *(np.array(column, np.uint32) for column in zip(*rows, strict=True)),
        ),
    )


@settings(max_examples=60, deadline=None)
@given(indices())
def test_round_trip(index):
    again = DatasetIndex.from_bytes(index.to_bytes())
    assert again.to_bytes() == index.to_bytes()
    for table in ("episodes", "shards"):
        for column in dataclasses.fields(getattr(index, table)):
            a, b = (getattr(getattr(x, table), column.name) for x in (index, again))
            np.testing.assert_array_equal(a, b, err_msg=column.name)
    assert {row: times.tolist() for row, times in again.clocks.items()} == {
        row: times.tolist() for row, times in index.clocks.items()
    }


@pytest.mark.parametrize(
    ("table", "column", "value", "message"),
    [
        ("episodes", "episode_id", ["a", "a"], "twice"),
        ("episodes", "source_id", ["a"], "differ in length"),
        ("episodes", "length", np.array([7, 0]), "makes no sense"),
        ("episodes", "fps", np.array([30, np.nan]), "makes no sense"),
        ("episodes", "t0", np.array([np.inf, 0]), "makes no sense"),
        ("episodes", "length", np.array([7, 4]), "clock of episode 'episode_1'"),
        ("episodes", "length", np.array([8, 3]), "leave a gap"),
        ("episodes", "regular", np.array([True, True]), "exactly the episodes"),
        ("shards", "first_frame", np.array([0, 5, 0], np.uint32), "leave a gap"),
        ("shards", "first_frame", np.array([1, 4, 0], np.uint32), "leave a gap"),
        ("shards", "frames", np.array([5, 3, 3], np.uint32), "leave a gap"),
        ("shards", "frames", np.array([4, 3, 0], np.uint32), "leaves one out"),
        ("shards", "episode", np.array([0, 0, 0], np.uint32), "leaves one out"),
        ("shards", "episode", np.array([0, 1, 0], np.uint32), "not sorted"),
        ("shards", "episode", np.array([0, 0, 2], np.uint32), "not sorted"),
        ("shards", "shard", np.array([0, 0, 1], np.uint32), "same shard"),
        ("shards", "hlp", np.array([0, 0], np.uint32), "differ in length"),
    ],
)
def test_tables_that_contradict_each_other(table, column, value, message):
    index = index_sample()
    wrong = dataclasses.replace(getattr(index, table), **{column: value})
    with pytest.raises(FormatError, match=message):
        dataclasses.replace(index, **{table: wrong})


def test_clocks_never_run_backwards():
    with pytest.raises(FormatError, match="backwards"):
        dataclasses.replace(index_sample(), clocks={1: np.array([0, 2, 1.0])})
