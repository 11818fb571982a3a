"""Packed datasets against the episodes that they were made from."""

import json
import shutil

import pytest

from knonik_assets.pack import pack
from knonik_assets.quality.packed import (
    PackedDataset,
    check_conserved,
    check_intact,
    check_loadable,
    check_psnr,
    check_size,
)
from knonik_loader.errors import FormatError, StorageError
from tests.assets.quality.conftest import write_episode


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Two episodes and their three packs; not to be changed."""
    root = tmp_path_factory.mktemp("packed")
    for number in range(2):
        write_episode(root / "episodes", number, codec="jpeg", frames=12)
    for profile in ("compact_video", "training_fast", "training_compressed"):
        pack(root / "episodes", root / profile, "stamps", shard_size=5, storage_profile=profile, engine="inline")
    return root


@pytest.fixture(params=["compact_video", "training_fast", "training_compressed"])
def dataset(built, request):
    return PackedDataset(built / request.param / "hlp_manifest.json")


@pytest.fixture
def damaged(built, tmp_path):
    """A copy of a pack that may be changed."""
    shutil.copytree(built / "training_fast", tmp_path / "copy")
    return tmp_path / "copy"


def test_a_good_pack_passes_everything(dataset, built):
    episodes = built / "episodes"
    conserved = check_conserved(dataset, episodes, ())
    assert conserved.passed
    assert conserved.message == "2 episodes, 24 frames in each of 4 streams"
    assert [(row["stream"], row["frames"]) for row in conserved.table] == [
        (stream.key, 24) for stream in dataset.streams()
    ]
    assert check_intact(dataset).passed
    assert check_psnr(dataset, {}).passed
    loadable = check_loadable(dataset, episodes)
    assert loadable.passed, loadable.message
    assert {row["key"] for row in loadable.table} == {"rgb_cam_0", "rgb_cam_1", "state", "action"}
    assert check_size(dataset, None).passed


def test_an_episode_that_is_missing_or_too_many(dataset, built, tmp_path):
    left_out = check_conserved(dataset, built / "episodes", ["episode_000001"])
    assert (left_out.passed, left_out.message) == (False, "episode_000001 should not be there")
    write_episode(tmp_path / "more", 7, codec="jpeg", frames=4)
    for number in range(2):
        shutil.copytree(built / "episodes" / f"episode_{number:06d}", tmp_path / "more" / f"episode_{number:06d}")
    assert check_conserved(dataset, tmp_path / "more", ()).message == "episode_000007 is missing"
    assert check_conserved(dataset, tmp_path / "more", ["episode_000007"]).passed


def test_an_episode_that_grew(dataset, built, tmp_path):
    shutil.copytree(built / "episodes" / "episode_000000", tmp_path / "grown" / "episode_000000")
    write_episode(tmp_path / "grown", 1, codec="jpeg", frames=13)
    finding = check_conserved(dataset, tmp_path / "grown", ())
    assert finding.message == "episode_000001 has 12 frames instead of 13"


def test_a_stream_that_is_missing(built, tmp_path):
    pack(built / "episodes", tmp_path / "one", "stamps", streams=["cam_0", "state"], engine="inline")
    dataset = PackedDataset(tmp_path / "one" / "hlp_manifest.json")
    finding = check_conserved(dataset, built / "episodes", ())
    assert finding.message == "no frame of rgb_cam_1 is packed; no frame of action is packed"
    assert check_conserved(dataset, built / "episodes", (), ["cam_0", "state"]).passed


def test_a_flipped_byte_in_a_picture(damaged):
    file = next(damaged.glob("*.khlp"))
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 0x10
    file.write_bytes(data)
    finding = check_intact(PackedDataset(damaged / "hlp_manifest.json"))
    assert not finding.passed
    assert f"{file.name} differs from its checksum" in finding.message
    assert "shard" in finding.message


@pytest.mark.parametrize("name", ["hlp_000000.khlp", "hlp_index.khli"])
def test_a_missing_file(damaged, name):
    (damaged / name).unlink()
    finding = check_intact(PackedDataset(damaged / "hlp_manifest.json"))
    assert not finding.passed
    assert name in finding.message


def test_a_manifest_that_is_damaged_or_missing(damaged):
    (damaged / "hlp_manifest.json").write_text("{}")
    with pytest.raises(FormatError, match="not a KHLP manifest"):
        PackedDataset(damaged / "hlp_manifest.json")
    with pytest.raises(StorageError, match=r"cannot read .*none\.json"):
        PackedDataset(damaged / "none.json")


def test_pictures_below_the_floor(dataset):
    finding = check_psnr(dataset, {dataset.manifest.storage_profile: 99.0})
    if all(stream.psnr_y is None for stream in dataset.manifest.streams):
        assert finding.message == "every picture is stored unchanged"
    else:
        assert not finding.passed
        assert "the floor is 99 dB" in finding.message


def test_numbers_that_are_not_the_episodes(built, tmp_path):
    shutil.copytree(built / "episodes", tmp_path / "other")
    write_episode(tmp_path / "other", 0, codec="jpeg", frames=12, change=lambda arrays: arrays["state"].__iadd__(1))
    finding = check_loadable(PackedDataset(built / "training_fast" / "hlp_manifest.json"), tmp_path / "other")
    assert not finding.passed
    assert "state of episode_000000, frame" in finding.message


def test_a_pack_that_no_loader_reads(damaged, built):
    manifest = json.loads((damaged / "hlp_manifest.json").read_text())
    (damaged / manifest["index"]["uri"]).write_bytes(b"nothing")
    finding = check_loadable(PackedDataset(damaged / "hlp_manifest.json"), built / "episodes")
    assert not finding.passed
    assert finding.message.startswith("the loader fails: ")


def test_a_pack_that_is_too_large(dataset):
    finding = check_size(dataset, 1e-6)
    assert not finding.passed
    assert finding.message.endswith("the card allows 1e-06 GB")
