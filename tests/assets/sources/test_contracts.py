"""Both readers against the shipped contract, over data whose every frame says who it is."""

import json
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from knonik_assets.sources.base_contract import Expected, SourceContract
from tests.assets.sources.support import V3, padded_rows, png, source, write_hdf5
from tests.support.stamps import episode_arrays

LAYOUT = {
    "images": {"front": "observations.images.cam_0", "side": "observations.images.cam_1"},
    "depth": {"near": "observations.near_depth"},
    "numeric": {"state": "observations.qpos", "action": "action"},
}


def arrays(episode: int) -> dict[str, np.ndarray]:
    found = episode_arrays(episode, 5 + episode % 3)
    rows = len(found["state"])
    found["near"] = np.arange(rows * 12, dtype=np.uint16).reshape(rows, 3, 4) + 700 + episode
    found["near"] = np.repeat(np.repeat(found["near"], 4, 1), 4, 2)
    return found


def known(episode: int) -> Expected:
    found = arrays(episode)
    return Expected(
        numeric={"state": found["state"], "action": found["action"]},
        pictures={"front": found["cam_0"], "side": found["cam_1"]},
        depth={"near": found["near"].astype(np.float32) / np.float32(1000)},
        tolerance=1e-6,
        timestamps=found["timestamps"],
        instruction=f"do {episode}",
    )


def fill(group: h5py.Group, episode: int) -> None:
    found = arrays(episode)
    group["observations/images/cam_0"] = found["cam_0"]
    group["observations/images/cam_1"] = padded_rows([png(picture) for picture in found["cam_1"]])
    group["observations/near_depth"] = found["near"]
    group["observations/qpos"] = found["state"].astype(np.float64)
    group["action"] = found["action"]
    group["timestamps"] = found["timestamps"]
    group.attrs["language_instruction"] = f"do {episode}"


class TestHdf5Files(SourceContract):
    def make_data(self, folder):
        folder.mkdir(parents=True)
        for episode in range(11):
            with h5py.File(folder / f"episode_{episode}.hdf5", "w") as file:
                fill(file, episode)
        return folder

    def make_source(self, root):
        return source(root, layout={**LAYOUT, "timestamps": "timestamps"})

    def expected(self):
        return {f"episode_{episode}": known(episode) for episode in range(11)}

    def change(self, root, source_id):
        with h5py.File(root / f"{source_id}.hdf5", "r+") as file:
            file["action"][2, 1] += 1


class TestHdf5Demos(SourceContract):
    def make_data(self, folder):
        folder.mkdir(parents=True)
        for name, episodes in (("task_2.hdf5", range(3)), ("task_10.hdf5", range(3, 14))):
            with h5py.File(folder / name, "w") as file:
                for place, episode in enumerate(episodes):
                    fill(file.create_group(f"data/demo_{place}"), episode)
        return folder

    def make_source(self, root):
        return source(root, demos="data/demo_*", layout=LAYOUT)

    def expected(self):
        first = {f"task_2.hdf5#demo_{place}": known(place) for place in range(3)}
        return first | {f"task_10.hdf5#demo_{place}": known(3 + place) for place in range(11)}

    def change(self, root, source_id):
        name, demo = source_id.split("#")
        with h5py.File(root / name, "r+") as file:
            file[f"data/{demo}/observations/images/cam_0"][1, 0, 0, 0] ^= 1


LENGTHS = [12, 9, 15, 7, 10]


class TestLeRobotV3(SourceContract):
    def make_data(self, folder):
        return V3(folder, LENGTHS, {"left": [1, 2, 2], "right": [3, 1, 1]}, [2, 3], b_frames=2, gop=12).write()

    def make_source(self, root):
        return source(root, "lerobot_v3")

    def expected(self):
        def one(episode):
            found = episode_arrays(episode, LENGTHS[episode])
            return Expected(
                numeric={"state": found["state"], "action": found["action"]},
                pictures={"left": found["cam_0"], "right": found["cam_1"]},
                depth={},
                tolerance=9.0,
                timestamps=found["timestamps"],
                instruction=f"task {episode % 2}",
            )

        return {str(episode): one(episode) for episode in range(len(LENGTHS))}

    def change(self, root, source_id):
        assert source_id == "1"
        path = root / "data/chunk-000/file-000.parquet"
        table = pq.read_table(path)
        states = table["observation.state"].to_pylist()
        states[LENGTHS[0] + 3][1] += 1
        place = table.column_names.index("observation.state")
        table = table.set_column(place, "observation.state", pa.array(states, pa.list_(pa.float32(), 4)))
        pq.write_table(table, path)


class TestLeRobotV3Pictures(SourceContract):
    def make_data(self, folder):
        dataset = V3(folder, LENGTHS, {}, [2, 3])

        def rows(episode):
            found = episode_arrays(episode, LENGTHS[episode])
            cells = [{"bytes": png(picture), "path": None} for picture in found["cam_0"]]
            kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
            return dataset.rows(episode) | {"observation.images.top": pa.array(cells, kind)}

        dataset.info["features"]["observation.images.top"] = {"dtype": "image", "shape": [96, 112, 3]}
        return dataset.write(rows)

    def make_source(self, root):
        return source(root, "lerobot_v3")

    def expected(self):
        def one(episode):
            found = episode_arrays(episode, LENGTHS[episode])
            return Expected(
                numeric={"state": found["state"], "action": found["action"]},
                pictures={"top": found["cam_0"]},
                depth={},
                instruction=f"task {episode % 2}",
            )

        return {str(episode): one(episode) for episode in range(len(LENGTHS))}

    def change(self, root, source_id):
        path = root / "data/chunk-000/file-000.parquet"
        table = pq.read_table(path)
        cells = table["observation.images.top"].to_pylist()
        cells[LENGTHS[0]]["bytes"] = png(np.full((96, 112, 3), 7, np.uint8))
        column = table.schema.field("observation.images.top")
        place = table.column_names.index(column.name)
        pq.write_table(table.set_column(place, column.name, pa.array(cells, column.type)), path)


def test_task_text_counts_not_its_index(tmp_path: Path):
    """The writer numbers tasks in any order, so the same dataset must keep its fingerprints under another numbering."""
    contract = TestLeRobotV3Pictures()
    root = contract.make_data(tmp_path / "raw")
    before = contract.fingerprints(contract.make_source(root))
    swapped = pa.table({"task_index": [0, 1], "task": ["task 1", "task 0"]})
    pq.write_table(swapped, root / "meta/tasks.parquet")
    for path in (root / "data").rglob("*.parquet"):
        table = pq.read_table(path)
        place = table.column_names.index("task_index")
        numbers = pa.array([1 - number for number in table["task_index"].to_pylist()], pa.int64())
        pq.write_table(table.set_column(place, "task_index", numbers), path)
    assert contract.fingerprints(contract.make_source(root)) == before


@pytest.mark.parametrize("name", ["info.json"])
def test_a_dataset_needs_its_info(tmp_path: Path, name):
    from knonik_loader.errors import SourceError

    root = V3(tmp_path / "raw", [5], {}).write()
    (root / "meta" / name).unlink()
    with pytest.raises(SourceError, match=r"meta/info\.json"):
        source(root, "lerobot_v3").episodes()


def test_content_is_written_as_intended(tmp_path: Path):
    """The helper's own promise: files hold what the metadata says."""
    root = V3(tmp_path / "raw", [5, 6], {"left": [1, 1]}).write()
    assert json.loads((root / "meta/info.json").read_text())["fps"] == 30
    assert len(list(root.rglob("*.mp4"))) == 2
    write_hdf5(tmp_path / "a.h5", **{"x.y": np.arange(3)})
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["x/y"].shape == (3,)
