"""Looking at one episode that is not the first: of everything, and of what holds it alone."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from knonik_assets.cli import main
from knonik_assets.pack import pack
from knonik_assets.packing.stored import open_packed
from knonik_loader import ShardedDataLoader
from tests.assets.packing.support import SIZE, write_episode
from tests.assets.sources.support import V2, V3
from tests.support.packed import check_frame
from tests.support.road import loader_config
from tests.support.stamps import read_stamp

LENGTHS = [12, 9, 15, 21, 8]
FRAME = 17
"""Of episode 3; no other one is as long."""
OTHERS = [f"episode_{number:06d}" for number in (0, 1, 2, 4)]


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    out = tmp_path_factory.mktemp("episodes")
    for number, length in enumerate(LENGTHS):
        write_episode(out, number, length, depth=False)
    return out


def packed(source, out, **keys):
    return pack(source, out, "d", 7, 2, engine="inline", **keys)[0].parent


def alone(episodes, out):
    shutil.copytree(episodes / "episode_000003", out / "episode_000003")
    return out


def khlp(episodes, out, frame=FRAME):
    for path in sorted(packed(episodes, out, storage_profile="training_compressed").glob("*.khlp")):
        with open_packed(path) as file:
            shards = [file.index.shard(number) for number in range(file.index.num_shards)]
        if any(
            shard.episode_id == "episode_000003" and 0 <= frame - shard.first_frame < shard.frames for shard in shards
        ):
            return path
    raise AssertionError("no such file")


def raw3(episodes, out):
    return V3(out, LENGTHS, {"cam_0": [2, 3], "cam_1": [4, 1]}, [1, 4], size=SIZE).write()


def raw2(episodes, out):
    """A partial download: the list names all episodes, the files of one are there."""
    dataset = V2(out, LENGTHS, ["cam_0", "cam_1"], size=SIZE)
    dataset.write()
    for number in (0, 1, 2, 4):
        dataset.data_path(number).unlink()
        for camera in ("cam_0", "cam_1"):
            dataset.video_path(camera, number).unlink()
    return out


PLACES = {
    "episodes": lambda episodes, out: episodes,
    "its folder": lambda episodes, out: episodes / "episode_000003",
    "episodes without the others": alone,
    **{
        f"{profile}, {'all' if not keys else 'by ' + '-'.join(keys)}": (
            lambda episodes, out, keys=keys, profile=profile: packed(episodes, out, storage_profile=profile, **keys)
        )
        for profile in ("training_fast", "compact_video")
        for keys in ({}, {"episodes": ["episode_000003"]}, {"exclude": OTHERS})
    },
    "a file": khlp,
    "LeRobot 3": raw3,
    "LeRobot 2, the others missing": raw2,
}


@pytest.mark.parametrize(
    ("where", "name"),
    [(where, "3") for where in PLACES] + [(where, "episode_000003") for where in PLACES if "LeRobot" not in where],
)
def test_a_frame_of_it_is_saved(episodes, tmp_path, where, name):
    place = PLACES[where](episodes, tmp_path / "place")
    assert main(["inspect", str(place), "--frames", f"{name}:{FRAME}", "--out", str(tmp_path / "png")]) == 0
    (picture,) = (tmp_path / "png").iterdir()
    assert picture.name.endswith(f"3_{FRAME:06d}.png")
    image = np.asarray(Image.open(picture))
    width = SIZE[1]
    assert read_stamp(image[:, :width]) == (0, 3, FRAME)
    assert read_stamp(image[:, width : 2 * width]) == (1, 3, FRAME)


@pytest.mark.parametrize("where", [name for name in PLACES if name != "a file"])
@pytest.mark.parametrize("wanted", [f"3:{LENGTHS[3]}", "5:0"])
def test_what_it_has_not_is_named(episodes, tmp_path, capsys, where, wanted):
    place = PLACES[where](episodes, tmp_path / "place")
    assert main(["inspect", str(place), "--frames", wanted, "--out", str(tmp_path / "png")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert wanted.split(":")[0] in line
    assert not (tmp_path / "png").exists()


@pytest.mark.parametrize("keys", [{"episodes": ["episode_000003"]}, {"exclude": OTHERS}], ids=["episodes", "exclude"])
def test_a_pack_of_it_alone_is_whole_and_loads(episodes, tmp_path, capsys, keys):
    folder = packed(episodes, tmp_path / "packed", storage_profile="training_fast", **keys)
    assert main(["inspect", str(folder), "--verify", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["facts"]
    assert (facts["episodes"], facts["frames"]) == (1, LENGTHS[3])
    with ShardedDataLoader(loader_config(folder / "hlp_manifest.json", chunk_len=1)) as loader:
        batches = list(loader)
    seen = []
    for batch in batches:
        for at, frame in enumerate(batch["_frame_indices"].tolist()):
            assert batch["_episode_ids"][at] == "episode_000003"
            for key in ("rgb_cam_0", "rgb_cam_1", "state"):
                check_frame(key, batch[key][at, 0], 3, frame)
            seen.append(frame)
    assert sorted(seen) == list(range(LENGTHS[3]))
