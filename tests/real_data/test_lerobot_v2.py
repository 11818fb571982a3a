"""Published v2 datasets, against parquet read by pyarrow and videos decoded by PyAV alone."""

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.assets.sources.support import source, stream

SETS = {
    # folder: (episodes, frames of all, camera, width of the state, first instruction)
    "gr00t_robot_sim.PickNPlace": (5, 2096, "ego_view", 44, "pick the pear from the counter and place it in the plate"),
    "aloha_sim_v2_1": (4, 800, "top", 14, "Pick up the cube with the right arm and transfer it to the left arm."),
}


@pytest.mark.parametrize("name", SETS)
def test_counts_rows_and_words(real_data, name):
    episodes, total, camera, width, told = SETS[name]
    root = real_data / "lerobot" / name
    found = source(root, "lerobot_v2")
    refs = found.episodes()
    assert [ref.source_id for ref in refs] == [str(number) for number in range(episodes)]
    frames = 0
    for number, ref in enumerate(refs):
        table = pq.read_table(root / f"data/chunk-000/episode_{number:06d}.parquet")
        with found.open(ref) as episode:
            state = episode.numeric(stream(episode, "state"))
            wanted = np.array(table["observation.state"].to_pylist(), np.float32)
            np.testing.assert_array_equal(state, wanted)
            assert state.shape[1] == width
            times = np.array(table["timestamp"].to_pylist())
            np.testing.assert_allclose(episode.facts.timestamps, times, atol=1e-6)
            assert stream(episode, camera).length == len(state)
            frames += len(state)
            if number == 0:
                assert episode.facts.language.instruction == told
    assert frames == total


@pytest.mark.parametrize("name", SETS)
def test_every_picture_of_an_episode_is_that_of_its_row(real_data, name):
    camera = SETS[name][2]
    root = real_data / "lerobot" / name
    found = source(root, "lerobot_v2")
    path = root / f"videos/chunk-000/observation.images.{camera}/episode_000001.mp4"
    with av.open(str(path)) as container, found.open(found.episodes()[1]) as episode:
        decoded = sorted(container.decode(video=0), key=lambda frame: frame.pts)
        count = 0
        for one, other in zip(decoded, episode.frames(stream(episode, camera)), strict=True):
            away = one.to_ndarray(format="rgb24").astype(int) - other
            assert np.abs(away).mean() < 3
            count += 1
        assert count == len(pq.read_table(root / "data/chunk-000/episode_000001.parquet"))


def test_the_phantom_camera_is_told_of(real_data):
    found = source(real_data / "lerobot" / "gr00t_robot_sim.PickNPlace", "lerobot_v2")
    found.episodes()
    assert any("observation.images.egoview" in warning for warning in found.warnings)
    assert any("doesn't lead to 4 of 5 data files" in warning for warning in found.warnings)
