import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from knonik_loader.plan.windows import Window, clock_us, frame_offsets, resolve_on_clock, resolve_regular

ROUNDINGS = ["nearest", "floor", "ceil"]
RATES = [10.0, 15.0, 24.0, 29.97, 30.0, 50.0, 60.0, 1000 / 33, 120.0]


def on_grid(window, fps, length):
    """Both ways of resolving on the same nominal clock, at every anchor."""
    anchors = np.arange(length)
    closed = resolve_regular(frame_offsets(window, fps), anchors, np.full(length, length))
    searched = resolve_on_clock(clock_us(np.arange(length) / fps), anchors, window, fps)
    return closed, searched


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(RATES), st.sampled_from(ROUNDINGS), st.integers(-200, 200), st.integers(1, 60))
@example(30.0, "nearest", 6, 9)
def test_closed_form_and_search_agree_on_quarter_frames(fps, rounding, quarters, length):
    window = Window.at_offsets([quarters / 4 / fps], rounding)
    (frames, valid), (searched, searched_valid) = on_grid(window, fps, length)
    assert np.array_equal(frames, searched)
    assert np.array_equal(valid, searched_valid)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(RATES), st.sampled_from(ROUNDINGS), st.floats(-4, 4), st.integers(1, 60))
def test_closed_form_and_search_agree_on_any_offset(fps, rounding, delta, length):
    # Within 8 us of where an answer changes, the rounding of clock and offset may tell either way.
    place = delta * fps - (0.5 if rounding == "nearest" else 0)
    assume(abs(place - round(place)) / fps > 8e-6)
    (frames, valid), (searched, searched_valid) = on_grid(Window.at_offsets([delta], rounding), fps, length)
    assert np.array_equal(frames, searched)
    assert np.array_equal(valid, searched_valid)


@pytest.mark.parametrize(
    ("delta", "fps", "offset"),
    [(0.0333, 30, 1), (63 / 30, 30, 63), (53 / 50, 50, 53), (-0.1, 50, -5), (-0.0333, 30, -1), (1 / 3, 30, 10)],
)
def test_offsets_are_rounded_not_cut(delta, fps, offset):
    assert frame_offsets(Window.at_offsets([delta]), fps).tolist() == [offset]


@pytest.mark.parametrize("fps", RATES)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_whole_frames_are_hit_in_every_rounding(fps, rounding):
    frames = np.arange(-300, 301)
    assert np.array_equal(frame_offsets(Window.at_offsets(frames / fps, rounding), fps), frames)
    # The same on a measured clock that happens to be the nominal one, from every anchor.
    window = Window.at_offsets([-3 / fps, 2 / fps], rounding)
    found, valid = resolve_on_clock(clock_us(np.arange(100) / fps), np.arange(3, 98), window, fps)
    assert valid.all()
    assert np.array_equal(found, np.arange(3, 98)[:, None] + [-3, 2])


@pytest.mark.parametrize("fps", RATES)
@pytest.mark.parametrize("half", [-7, -1, 1, 3, 9])
def test_half_a_frame_goes_to_the_earlier_one(fps, half):
    window = Window.at_offsets([half / 2 / fps])
    earlier = (half - 1) // 2
    assert frame_offsets(window, fps).tolist() == [earlier]
    anchors = np.arange(10, 60)
    found, valid = resolve_on_clock(clock_us(np.arange(80) / fps), anchors, window, fps)
    assert valid.all()
    assert np.array_equal(found[:, 0], anchors + earlier)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_between_frames_the_rounding_decides(rounding):
    window = Window.at_offsets([0.026, -0.026], rounding)  # 1.3 frames at 50 Hz
    expected = {"nearest": [1, -1], "floor": [1, -2], "ceil": [2, -1]}[rounding]
    assert frame_offsets(window, 50).tolist() == expected


def test_chunks_are_clamped_at_both_ends_with_masks():
    frames, valid = resolve_regular(np.arange(-2, 3), np.array([0, 4]), np.array([5, 5]))
    assert frames.tolist() == [[0, 0, 0, 1, 2], [2, 3, 4, 4, 4]]
    assert valid.tolist() == [[False, False, True, True, True], [True, True, True, False, False]]


@pytest.mark.parametrize("search", [False, True])
def test_offsets_beyond_the_look_ahead_of_a_long_episode(search):
    fps, length = 30.0, 300
    window = Window.at_offsets([-3.5, 0.0, 3.5])
    anchors = np.array([0, 104, 105, 150, 194, 195, 299])
    if search:
        frames, valid = resolve_on_clock(clock_us(np.arange(length) / fps), anchors, window, fps)
    else:
        frames, valid = resolve_regular(frame_offsets(window, fps), anchors, np.full(len(anchors), length))
    assert frames[:, 0].tolist() == [0, 0, 0, 45, 89, 90, 194]
    assert frames[:, 2].tolist() == [105, 209, 210, 255, 299, 299, 299]
    assert valid.tolist() == [
        [False, True, True],
        [False, True, True],
        [True, True, True],
        [True, True, True],
        [True, True, True],
        [True, True, False],
        [True, True, False],
    ]


class TestGaps:
    """A recorder that missed frames: what stands in for them is too far from what was asked."""

    fps = 30.0

    def clock(self, missing):
        return clock_us(np.delete(np.arange(20), missing) / self.fps)

    def resolve(self, missing, anchor, deltas, rounding="nearest"):
        window = Window.at_offsets(np.array(deltas) / self.fps, rounding)
        frames, valid = resolve_on_clock(self.clock(missing), np.array([anchor]), window, self.fps)
        return frames[0].tolist(), valid[0].tolist()

    def test_frames_after_a_gap_are_found_by_time(self):
        # Slot 5 is missing: frame 5 was taken at slot 6.
        assert self.resolve([5], 3, [0, 1, 3, 4]) == ([3, 4, 5, 6], [True] * 4)

    def test_exactly_one_period_off_is_still_near(self):
        for slot in range(5, 15):
            assert self.resolve([slot], slot - 2, [2]) == ([slot - 1], [True])

    def test_more_than_one_period_off_is_missing(self):
        # Slots 5 to 8 are missing; frame 5 was taken at slot 9.
        frames, valid = self.resolve([5, 6, 7, 8], 3, [1, 2, 3, 4, 5, 6])
        assert frames == [4, 4, 4, 5, 5, 5]
        assert valid == [True, True, False, False, True, True]

    @pytest.mark.parametrize(
        ("rounding", "frames", "valid"),
        [("floor", [4, 4, 4, 5], [True, False, False, True]), ("ceil", [5, 5, 5, 5], [False, False, True, True])],
    )
    def test_floor_and_ceil_over_a_gap(self, rounding, frames, valid):
        # Slots 5, 6 and 7 are missing; slots 4.5, 5.5, 7.5 and 8 are asked for.
        assert self.resolve([5, 6, 7], 3, [1.5, 2.5, 4.5, 5], rounding) == (frames, valid)


def test_jitter_never_returns_a_far_frame_without_a_mask():
    rng = np.random.default_rng(3)
    times = np.sort(np.delete(np.arange(400) / 30 + rng.normal(0, 0.004, 400), rng.choice(400, 30, replace=False)))
    clock = clock_us(times)
    anchors = np.arange(len(clock))
    deltas = rng.uniform(-1, 1, 25)
    for rounding in ROUNDINGS:
        window = Window.at_offsets(deltas, rounding)
        frames, valid = resolve_on_clock(clock, anchors, window, 30.0)
        off = np.abs(clock[frames] - (clock[anchors][:, None] + np.rint(deltas * 1e6)))
        assert off[valid].max() <= 1e6 / 30 + 2
        assert (~valid).any()
        if rounding == "floor":
            assert (clock[frames] <= clock[anchors][:, None] + deltas * 1e6 + 3)[valid].all()
        if rounding == "nearest":
            best = np.abs(clock[:, None, None] - (clock[anchors][:, None] + deltas * 1e6)).min(0)
            assert (off[valid] <= best[valid] + 2).all()


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_no_offset_is_the_anchor_itself_where_two_frames_have_one_time(rounding):
    clock = np.array([0, 33_333, 33_333, 100_000])
    frames, valid = resolve_on_clock(clock, np.arange(4), Window.at_offsets([0.0], rounding), 30.0)
    assert frames[:, 0].tolist() == [0, 1, 2, 3]
    assert valid.all()
