"""What is settled before a frame is read: length, rate, clock, language, further metadata."""

from pathlib import Path

import numpy as np
import pytest

from knonik_assets.configs.load import load_ingest_config
from knonik_assets.ingesting.facts import about, clock, common_length, language, nominal_fps
from knonik_assets.sources.base import EpisodeFacts, Language, StreamSpec
from knonik_loader.errors import EpisodeError


def config(**changes):
    return load_ingest_config({"dir_type": "episodic", "data_type": "hdf5", **changes})


def camera(length, fps=None, name="cam"):
    return StreamSpec("rgb", name, f"images.{name}", length, (8, 8, 3), fps=fps)


def rows(length, name="state"):
    return StreamSpec("numeric", name, name, length, (2,))


def test_the_shortest_stream_decides():
    found = common_length([camera(9), rows(7), rows(7, "action")], None)
    assert (found.frames, found.trimmed) == (7, {"rgb_cam": 2})
    assert "rgb_cam by 2" in found.warning()
    assert common_length([camera(7), rows(7)], None).warning() is None
    assert common_length([], None).frames == 0


def test_a_short_clock_cuts_all_streams_and_a_long_one_is_cut():
    assert common_length([camera(9), rows(9)], np.arange(5.0)).trimmed == {"rgb_cam": 4, "state": 4}
    found = common_length([camera(9)], np.arange(12.0))
    assert (found.frames, found.trimmed) == (9, {"timestamps": 3})
    np.testing.assert_array_equal(clock(np.arange(12.0), 9), np.arange(9.0))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_clock_that_is_not_finite_is_named_with_its_frame(bad):
    times = np.arange(6.0)
    times[4] = bad
    with pytest.raises(EpisodeError, match="frame 4"):
        clock(times, 6)
    assert clock(times, 4) is not None
    assert clock(None, 4) is None


@pytest.mark.parametrize(
    ("said", "stated", "times", "wanted"),
    [
        (25, 50.0, None, 25.0),
        (None, 50.0, None, 50.0),
        (None, None, np.arange(20) / 20, 20.0),
        (None, None, 1.7e9 + np.arange(20) / 15, 15.0),
        (None, None, np.cumsum([0, 0.1, 0.3, 0.1, 0.2]), 30.0),
        (None, None, np.zeros(5), 30.0),
    ],
)
def test_rates_by_strength(said, stated, times, wanted):
    settings = config(fps=said) if said else config()
    fps, warning = nominal_fps(settings, [rows(20), camera(20, stated)], times)
    assert fps == wanted
    assert warning is None


def test_a_rate_that_nobody_states_is_assumed_and_said():
    fps, warning = nominal_fps(config(), [rows(20), camera(20, None)], None)
    assert fps == 30
    assert "assumed" in warning


@pytest.mark.parametrize("fps", [10.0, 30.0, 50.0])
@pytest.mark.parametrize("how", ["a gap", "gaps", "jitter"])
def test_a_rate_that_only_an_uneven_clock_shows_is_said(fps, how):
    """Not 30: the loader calls missing what is further than a period of this rate from what was asked."""
    slots = np.delete(np.arange(40.0), {"a gap": [13], "gaps": [5, 6, 7, 20, 31], "jitter": []}[how])
    jitter = np.random.default_rng(0).normal(0, 0.05, len(slots)) if how == "jitter" else 0
    found, warning = nominal_fps(config(), [rows(len(slots))], (slots + jitter) / fps)
    assert found == fps
    assert f"{fps:g} is its usual one" in warning


def test_a_rate_that_the_clock_contradicts_is_warned_of():
    fps, warning = nominal_fps(config(fps=30), [camera(20)], np.arange(20) / 50)
    assert fps == 30
    assert "50" in warning


def test_rephrases_alone_go_with_the_instruction_of_the_source():
    facts = EpisodeFacts(language=Language("wave", ("greet",), ((0.0, 1.0, "wave"),)))
    said, origin = language(config(language={"rephrases": ["say hello"]}), facts)
    assert (said.instruction, said.rephrases, origin) == ("wave", ("say hello",), "source")
    assert said.segments == facts.language.segments
    assert language(config(language={"rephrases": ["say hello"]}), EpisodeFacts()) is None


def test_metadata_of_the_config_is_kept_and_wins():
    facts = EpisodeFacts(attributes={"robot_type": "from source", "source_bag": "a.bag", "operator": "x"})
    dataset, robot, extra = about(config(metadata={"operator": "y", "n": [1]}), facts, Path("/data/kitchen.zarr"))
    assert (dataset, robot, extra) == (
        "kitchen",
        "from source",
        {"source_bag": "a.bag", "operator": "y", "n": [1]},
    )
    dataset, robot, extra = about(config(metadata={"dataset": "d", "robot_type": "r"}), facts, Path("/data"))
    assert (dataset, robot) == ("d", "r")
    assert "robot_type" not in extra


@pytest.mark.parametrize(
    ("root", "name"),
    [("/data/kitchen.zarr.zip", "kitchen"), ("/data/v1.0", "v1.0"), ("/data/run.hdf5", "run"), ("/", "dataset")],
)
def test_a_dataset_is_called_after_its_folder(root, name):
    assert about(config(), EpisodeFacts(), Path(root))[0] == name
