"""Every family read from a bucket: the same episodes, fingerprints, frames and facts as from a local folder."""

import numpy as np
import pytest

from knonik_assets.sources.base_contract import NoCache, as_array
from knonik_assets.sources.registry import open_source
from tests.assets.sources import (
    test_calvin,
    test_contracts,
    test_d3il,
    test_lerobot_v2,
    test_npy_separate,
    test_npz,
    test_rlds,
    test_ros_contract,
    test_zarr,
)
from tests.support.buckets import upload_tree

CASES = {
    "hdf5": test_contracts.TestHdf5Files,
    "hdf5 demos": test_contracts.TestHdf5Demos,
    "npz": test_npz.TestCompressed,
    "zarr v2": test_zarr.TestFormat2,
    "zarr v3": test_zarr.TestFormat3,
    "replay buffer": test_zarr.TestReplayBuffer,
    "zipped replay buffer": test_zarr.TestUmi,
    "lerobot v2": test_lerobot_v2.TestVideos,
    "lerobot v2, loose pictures": test_lerobot_v2.TestLoosePictures,
    "lerobot v3": test_contracts.TestLeRobotV3,
    "calvin": test_calvin.TestCalvin,
    "d3il": test_d3il.TestAligning,
    "rlds": test_rlds.TestRlds,
    "staged": test_npy_separate.TestStaged,
    "ros 1": test_ros_contract.TestBag,
    "mcap": test_ros_contract.TestMcap,
    "rosbag2 with metadata": test_ros_contract.TestSqlite,
}
APART = ("hdf5", "npz", "zarr v2", "zarr v3", "ros 1", "mcap", "rosbag2 with metadata", "d3il")
"""What their episodes share, if anything, are names."""


def seen(source, local):
    """What a source says and shows, with the URL for the local path."""
    found = {}
    for ref in source.episodes():
        with source.open(ref) as episode:
            facts = episode.facts
            times = None if facts.timestamps is None else np.asarray(facts.timestamps).tolist()
            streams = {
                (spec.kind, spec.name): (
                    episode.numeric(spec)
                    if spec.kind == "numeric"
                    else np.stack([as_array(frame) for frame in episode.frames(spec)])
                )
                for spec in episode.streams
            }
            fingerprint = source.fingerprint(ref, NoCache())
            told = local((str([*episode.streams]), str(facts.language), str(facts.attributes), str(facts.warnings)))
        found[local(ref.source_id)] = (fingerprint, times, told, streams)
    return found, local([*source.warnings])


@pytest.mark.parametrize("case", CASES)
def test_same_as_local(case, tmp_path, s3, monkeypatch):
    scratch = tmp_path / "scratch"
    monkeypatch.setenv("KNONIK_SCRATCH", str(scratch))
    contract = CASES[case]()
    root = contract.make_data(tmp_path / "raw")
    here = contract.make_source(root)
    url = upload_tree(root, f"{s3}/lake/{root.name}")
    there = open_source(here.config, url)

    def local(value):
        if isinstance(value, str):
            return value.replace(str(root), url).replace(str(root.resolve()), url)
        return type(value)(map(local, value))

    wanted, warnings = seen(here, local)
    found, said = seen(there, local)
    assert there.format == here.format
    assert said == warnings
    assert list(found) == list(wanted)
    for name, (fingerprint, times, told, streams) in wanted.items():
        assert found[name][:3] == (fingerprint, times, told), name
        assert found[name][3].keys() == streams.keys()
        for key, values in streams.items():
            np.testing.assert_array_equal(found[name][3][key], values)
    staged = [path for path in scratch.rglob("*") if path.is_file() and path.stat().st_size and path.name != "held"]
    assert bool(staged) != (case in APART), "what an episode had to itself has left scratch"
    there.close()
    assert not list(scratch.glob("room-*"))
