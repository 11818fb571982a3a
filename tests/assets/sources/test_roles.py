"""Action and state, as the config declares them, a format defines them, or a place in the source names them."""

import h5py
import numpy as np
import pytest

from tests.assets.sources.support import only_episode
from tests.support.calvin_data import calvin

ALOHA = {"action": 3, "observations/qpos": 3, "observations/qvel": 3, "base_action": 2}


def file_of(folder, arrays, name="episode_0.hdf5"):
    with h5py.File(folder / name, "w") as file:
        for place, width in arrays.items():
            file[place] = np.arange(4.0 * width).reshape(4, width)
    return folder


def roles(episode):
    return {spec.role: spec.source for spec in episode.streams if spec.role is not None}


@pytest.mark.parametrize(
    ("arrays", "wanted"),
    [
        (ALOHA, {"action": "action", "state": "observations.qpos"}),
        ({"actions": 7, "obs/proprio": 9, "states": 30}, {"action": "actions", "state": "obs.proprio"}),
        ({"action": 3, "observation/state": 3}, {"action": "action", "state": "observation.state"}),
        # several of one role: nobody says which is meant
        ({"action": 3, "actions": 3, "qpos": 3}, {"state": "qpos"}),
        ({"action": 3, "state": 3, "observations/qpos": 3}, {"action": "action"}),
        # neither deeper places nor longer names mean anything
        ({"left/action": 3, "action_mask": 1, "states": 3, "rewards": 1}, {}),
    ],
)
def test_places_that_mean_a_role(tmp_path, arrays, wanted):
    with only_episode(file_of(tmp_path, arrays), data_type="hdf5") as opened:
        assert roles(opened) == wanted


@pytest.mark.parametrize(
    ("numeric", "wanted"),
    [
        ({"action": "base_action", "wheels": "action"}, {"action": "base_action"}),
        ({"state": "observations.qvel", "q": "observations.qpos"}, {"state": "observations.qvel"}),
        ({"cmd": "action", "q": "observations.qpos"}, {"action": "action", "state": "observations.qpos"}),
        ({"q": "observations.qvel"}, {}),
    ],
)
def test_the_layouts_own_names_declare_roles(tmp_path, numeric, wanted):
    folder = file_of(tmp_path, ALOHA)
    with only_episode(folder, data_type="hdf5", layout={"numeric": numeric}) as opened:
        assert roles(opened) == wanted


def test_a_layout_wins_over_what_the_format_defines(tmp_path):
    calvin(tmp_path, [(100, 103)])
    with only_episode(tmp_path, "calvin") as opened:
        assert roles(opened) == {"action": "actions", "state": "robot_obs"}
    layout = {"numeric": {"action": "rel_actions", "absolute": "actions", "robot_obs": "robot_obs"}}
    with only_episode(tmp_path, "calvin", layout=layout) as opened:
        assert roles(opened) == {"action": "rel_actions", "state": "robot_obs"}
