"""Packing at s3:// (moto's server): the bytes of a local pack, one winner, nothing half-written, bounded scratch."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from knonik_assets import pack_run
from knonik_assets.collecting import collect_generations
from knonik_assets.pack import pack
from knonik_assets.packing import work
from knonik_assets.packing.inspect import inspect_path, save_frames
from knonik_assets.packing.staging import Desk
from knonik_assets.storage import LEASE, Lease
from knonik_loader import ShardedDataLoader
from knonik_loader.errors import ConfigError, EpisodeError, PackError, StorageError
from knonik_loader.khlp.manifest import content_digest
from tests.assets.packing.support import four_episodes, stored, write_episode, write_episodes
from tests.support.buckets import folder_at, upload_tree
from tests.support.road import tree
from tests.support.stamps import read_stamp

OPTIONS = {"dataset_name": "d", "shard_size": 7, "window_size": 3}


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    return four_episodes(tmp_path_factory.mktemp("episodes"))


@pytest.mark.parametrize(
    ("profile", "ends"),
    [
        ("compact_video", "both"),
        ("training_fast", "both"),
        ("training_compressed", "both"),
        ("training_fast", "input"),
        ("training_fast", "output"),
    ],
)
def test_the_bytes_are_those_of_a_local_pack(episodes, s3, tmp_path, scratch, profile, ends):
    options = {**OPTIONS, "split": "train=0.7,val=0.3", "storage_profile": profile, "engine": "inline"}
    whole = pack(episodes, tmp_path / "whole", **options)
    source = upload_tree(episodes, f"{s3}/lake/episodes") if ends != "output" else episodes
    out = tmp_path / "out" if ends == "input" else f"{s3}/lake/packed"
    paths = pack(source, out, **options)
    assert (tree(out) if ends == "input" else stored(out)) == tree(tmp_path / "whole")
    assert [str(path).removeprefix(str(out)) for path in paths] == [
        str(path).removeprefix(str(tmp_path / "whole")) for path in whole
    ]
    if ends != "input":
        report = json.loads(folder_at(out).read_bytes("pack_report.json"))
        assert report["input_dir"] == str(source)
        assert report["files_written"] == len(paths) - 2


@pytest.mark.parametrize("window", [3, 64], ids=["by files", "by shards"])
def test_worker_processes_stage_for_themselves(episodes, s3, tmp_path, scratch, window):
    options = {**OPTIONS, "window_size": window, "storage_profile": "training_compressed"}
    pack(episodes, tmp_path / "whole", engine="inline", **options)
    source = upload_tree(episodes, f"{s3}/episodes")
    pack(source, f"{s3}/packed", workers=2, **options)
    assert stored(f"{s3}/packed") == tree(tmp_path / "whole")


def test_a_loader_reads_what_was_packed(episodes, s3, scratch):
    source = upload_tree(episodes, f"{s3}/episodes")
    manifest = pack(source, f"{s3}/packed", engine="inline", storage_profile="training_fast", **OPTIONS)[0]
    assert manifest == f"{s3}/packed/hlp_manifest.json"
    config = {
        "decode_mode": "random_access",
        "hlp_manifest": manifest,
        "fs_type": "s3",
        "chunk_len": 2,
        "batch_size": 5,
        "rank": 0,
        "world_size": 1,
    }
    seen = set()
    with ShardedDataLoader(config) as loader:
        for batch in loader:
            rows = zip(batch["_episode_ids"], batch["_frame_indices"], batch["rgb_cam_1"], strict=True)
            for name, anchor, frames in rows:
                episode = int(name.removeprefix("episode_"))
                assert [read_stamp(image) for image in frames] == [(1, episode, anchor), (1, episode, anchor + 1)]
                seen.add((episode, int(anchor)))
    assert len(seen) == 22 + 9 + 30 + 11


def test_generations(episodes, s3, tmp_path, scratch):
    """Unchanged: nothing; changed: refused, then a generation beside the old one, which is collected by and by."""
    source, out = upload_tree(episodes, f"{s3}/episodes"), f"{s3}/packed"
    options = {**OPTIONS, "engine": "inline", "storage_profile": "training_fast"}
    paths = pack(source, out, **options)
    before = folder_at(out).objects()
    assert pack(source, out, **options) == paths
    assert pack(source, out, **options, overwrite=True) == paths
    assert folder_at(out).objects() == before
    with pytest.raises(PackError, match=r"s3://.*/packed holds a packed dataset already.*seed 0 -> 5.*--overwrite"):
        pack(source, out, **options, seed=5)
    assert folder_at(out).objects() == before
    first = stored(out)
    again = pack(source, out, **options, seed=5, overwrite=True)
    assert again[2] == f"{out}/gen_0002/hlp_000000.khlp"
    second = stored(out)
    assert {name: second[name] for name in first if name != "hlp_manifest.json"} == {
        name: data for name, data in first.items() if name != "hlp_manifest.json"
    }
    assert collect_generations(out, 14) == []
    (removed,) = collect_generations(out, 0)
    assert (removed.generation, removed.finished, removed.files) == (1, True, len(paths))
    local = [
        pack(episodes, tmp_path / "local", **options),
        pack(episodes, tmp_path / "local", **options, seed=5, overwrite=True),
    ]
    collect_generations(tmp_path / "local", 0)
    assert stored(out) == tree(tmp_path / "local"), local


def test_changed_episodes_are_named(episodes, s3, tmp_path, scratch):
    copy = write_episodes(tmp_path / "episodes", (6, 7), cameras=0, depth=False)
    source, out = upload_tree(copy, f"{s3}/episodes"), f"{s3}/packed"
    pack(source, out, "d", engine="inline")
    write_episode(copy, 1, 8, cameras=0, depth=False)
    write_episode(copy, 2, 5, cameras=0, depth=False)
    upload_tree(copy, source)
    with pytest.raises(PackError, match=r"1 new episodes \(episode_000002\); 1 changed episodes \(episode_000001\)"):
        pack(source, out, "d", engine="inline")
    paths = pack(source, out, "d", engine="inline", overwrite=True, exclude=["episode_000001"])
    assert json.loads(folder_at(out).read_bytes("hlp_manifest.json"))["num_frames"] == 11, paths


def test_the_second_packer_is_told_who_is_first(episodes, s3, scratch):
    out = f"{s3}/packed"
    with (
        Lease(folder_at(out), "knonik pack of somebody"),
        pytest.raises(StorageError, match=r"packed is being written by another run .*knonik pack of somebody"),
    ):
        pack(episodes, out, engine="inline", **OPTIONS)
    assert [info.key for info in folder_at(out).objects()] == [LEASE]


def test_of_two_packers_at_once_one_wins(episodes, s3, scratch):
    """Two programs with different options: one's dataset stands, whole; the other ends with one sentence."""
    source = upload_tree(episodes, f"{s3}/episodes")
    knonik = Path(sys.executable).with_name("knonik")
    call = [knonik, "pack", "--input-dir", source, "--output-dir", s3, "--dataset-name", "d", "--engine", "inline"]
    out = f"{s3}/knonik_d_hlp"
    racers = [
        subprocess.Popen([*call, "--seed", seed], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        for seed in ("1", "2")
    ]
    said = [racer.communicate(timeout=120)[1] for racer in racers]
    codes = [racer.returncode for racer in racers]
    assert sorted(codes) == [0, 1], said
    (loser,) = [text for text, code in zip(said, codes, strict=True) if code]
    assert "is being written by another run" in loser or "holds a packed dataset already" in loser, loser
    manifest = json.loads(folder_at(out).read_bytes("hlp_manifest.json"))
    assert manifest["seed"] == codes.index(0) + 1
    assert inspect_path(out, verify=True)["damage"] == []


@pytest.mark.parametrize("generation", [1, 2])
def test_of_two_manifests_the_first_stands(episodes, s3, scratch, monkeypatch, generation):
    """Even where no lease keeps two packers apart, only one of them wins."""
    out = f"{s3}/packed"
    options = {**OPTIONS, "engine": "inline", "storage_profile": "training_fast"}
    if generation == 2:
        pack(episodes, out, **options)
    real = pack_run.publish

    def overtaken(*arguments):
        folder_at(out).put_bytes("hlp_manifest.json", b'{"of": "another packer"}')
        real(*arguments)

    monkeypatch.setattr(pack_run, "publish", overtaken)
    with pytest.raises(PackError, match="another run packed this dataset at the same time and was first"):
        pack(episodes, out, **options, seed=3, overwrite=True)
    assert folder_at(out).read_bytes("hlp_manifest.json") == b'{"of": "another packer"}'


def test_a_manifest_of_a_run_that_was_killed_just_before_the_end_is_in_nobodys_way(episodes, s3, scratch):
    """Also where this run says something else of the same plan, such as another PSNR by another decoder."""
    out = f"{s3}/packed"
    options = {**OPTIONS, "engine": "inline", "storage_profile": "training_fast", "overwrite": True}
    pack(episodes, out, **options)
    first = folder_at(out).read_bytes("hlp_manifest.json")
    pack(episodes, out, **options, seed=3)
    done = stored(out)
    folder_at(out).put_bytes("hlp_manifest.json", first)
    left = json.loads(done["hlp_manifest.2.json"])
    left["stats"] = {}
    folder_at(out).put_bytes("hlp_manifest.2.json", json.dumps(left | {"sha256": content_digest(left)}).encode())
    pack(episodes, out, **options, seed=3)
    assert stored(out) == done


def test_a_generation_that_another_run_finished_meanwhile_stands(episodes, s3, scratch, monkeypatch):
    out = f"{s3}/packed"
    real = pack_run.publish

    def overtaken(*arguments):
        folder_at(out).put_bytes("hlp_manifest.1.json", b'{"of": "another packer"}')
        real(*arguments)

    monkeypatch.setattr(pack_run, "publish", overtaken)
    with pytest.raises(PackError, match="another run packed this dataset at the same time and was first"):
        pack(episodes, out, engine="inline", **OPTIONS)
    assert folder_at(out).read_bytes("hlp_manifest.1.json") == b'{"of": "another packer"}'
    assert folder_at(out).head("hlp_manifest.json") is None


def test_a_file_that_another_run_wrote_over_is_not_published(episodes, s3, scratch, monkeypatch):
    out = f"{s3}/packed"
    real = pack_run.fidelity.worst

    def overwritten(*arguments):
        folder_at(out).put_bytes("hlp_000001.khlp", b"of another packer")
        return real(*arguments)

    monkeypatch.setattr(pack_run.fidelity, "worst", overwritten)
    with pytest.raises(PackError, match=r"hlp_000001\.khlp was replaced by another run"):
        pack(episodes, out, engine="inline", **OPTIONS)
    assert folder_at(out).head("hlp_manifest.json") is None


def test_a_packer_that_lost_its_lease_uploads_nothing_more(episodes, s3, scratch, monkeypatch):
    out = f"{s3}/packed"
    real = work.assemble

    def robbed(task, desk, shards):
        if task.name == "hlp_000002.khlp":
            folder_at(out).put_bytes(LEASE, b'{"id": "somebody else"}')
        return real(task, desk, shards)

    monkeypatch.setattr("knonik_assets.packing.transcode.assemble", robbed)
    with pytest.raises(StorageError, match="was taken over by another run"):
        pack(episodes, out, engine="inline", **OPTIONS)
    names = [info.key for info in folder_at(out).objects()]
    assert "hlp_000001.khlp" in names
    assert "hlp_000002.khlp" not in names
    assert "hlp_manifest.json" not in names


def test_damage_is_told_with_the_url(episodes, s3, tmp_path, scratch):
    source = upload_tree(episodes, f"{s3}/episodes")
    name = "episode_000001/rgb_cam_0.mkv"
    data = bytearray(folder_at(source).read_bytes(name))
    data[len(data) // 2] ^= 1
    folder_at(source).put_bytes(name, bytes(data))
    with pytest.raises(EpisodeError, match=rf"{source}/{name} differs from the checksum.*--exclude episode_000001"):
        pack(source, f"{s3}/packed", engine="inline", **OPTIONS)
    assert folder_at(f"{s3}/packed").head("hlp_manifest.json") is None
    folder_at(source).delete([name])
    with pytest.raises(EpisodeError, match=rf"{source}/{name} is missing"):
        pack(source, f"{s3}/packed", engine="inline", **OPTIONS)


def test_what_is_no_folder_of_episodes(s3, tmp_path, scratch, episodes):
    with pytest.raises(PackError, match=f"No ingested episode in {s3}/nothing"):
        pack(f"{s3}/nothing", tmp_path / "out", "d")
    with pytest.raises(StorageError, match=r"^s3://no-such-bucket-of-mine/x: the bucket .* does not exist; create it"):
        pack(episodes, "s3://no-such-bucket-of-mine/x", "d")
    source = upload_tree(episodes, f"{s3}/episodes")
    for out, says in ((source, "same directory"), (f"{source}/episode_000001/x", "inside the episode")):
        with pytest.raises(ConfigError, match=says):
            pack(source, out, "d")


def test_an_episode_that_is_replaced_meanwhile_is_never_mixed_in(episodes, s3, tmp_path, scratch, monkeypatch):
    source, out = upload_tree(episodes, f"{s3}/episodes"), f"{s3}/packed"
    other = write_episodes(tmp_path / "other", (23,), fps=25.0)
    real = pack_run.write_files

    def replacing(*arguments):
        results = real(*arguments)
        upload_tree(other, source)
        return results

    monkeypatch.setattr(pack_run, "write_files", replacing)
    with pytest.raises(PackError, match=f"{source}/episode_000000 was replaced while it was packed"):
        pack(source, out, engine="inline", **OPTIONS)
    assert folder_at(out).head("hlp_manifest.json") is None


def test_the_command_line(episodes, s3, tmp_path, scratch):
    source = upload_tree(episodes, f"{s3}/episodes")
    call = ["pack", "--input-dir", source, "--output-dir", f"{s3}/out/", "--dataset-name", "d", "--quiet"]
    knonik = Path(sys.executable).with_name("knonik")
    run = subprocess.run([knonik, *call, "--collect"], text=True, capture_output=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == f"{s3}/out/knonik_d_hlp/hlp_manifest.json"
    manifest = json.loads(folder_at(f"{s3}/out/knonik_d_hlp").read_bytes("hlp_manifest.json"))
    assert manifest["num_frames"] == 76
    assert np.isclose(manifest["fps"], 30)


# -- scratch space -------------------------------------------------------------------------------------------------


def sizes(episodes: Path, manifest: Path) -> tuple[int, int]:
    """Bytes of the largest KHLP file, and of the largest episode."""
    files = json.loads(manifest.read_text())["hlps"]
    folders = [
        sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) for folder in episodes.iterdir()
    ]
    return max(entry["bytes"] for entry in files), max(folders)


@pytest.mark.parametrize(
    ("window", "engine"), [(3, {"engine": "inline"}), (1, {"workers": 2}), (64, {"workers": 2})], ids=str
)
def test_room_for_one_file_and_one_episode_is_enough(episodes, s3, tmp_path, scratch, monkeypatch, window, engine):
    options = {**OPTIONS, "window_size": window, "storage_profile": "training_fast"}
    manifest = pack(episodes, tmp_path / "whole", engine="inline", **options)[0]
    source = upload_tree(episodes, f"{s3}/episodes")
    file, episode = sizes(episodes, manifest)
    # room is made before the exact size is known: 64 bytes a record and 2 KiB a shard are held in reserve
    limit = file + episode + min(window, 14) * ((4 * 7 + 3) * 64 + 2200)
    assert window == 64 or limit < 2 * episode, "two lanes get on only because one waits for the other"
    monkeypatch.setenv("KNONIK_SCRATCH_BYTES", str(limit))
    held, real = [], Desk.publish

    def published(desk, name):
        held.append(sum(path.stat().st_size for path in scratch.rglob("*") if path.is_file()))
        return real(desk, name)

    monkeypatch.setattr(Desk, "publish", published)
    pack(source, f"{s3}/packed", **engine, **options)
    assert stored(f"{s3}/packed") == tree(tmp_path / "whole")
    assert all(size <= limit for size in held)
    if "engine" in engine or window == 64:  # uploaded by this process
        assert len(held) == len(json.loads(manifest.read_text())["hlps"])


def test_too_little_room_says_for_what_and_how_much(episodes, s3, tmp_path, scratch, monkeypatch):
    options = {**OPTIONS, "storage_profile": "training_fast", "engine": "inline"}
    file, episode = sizes(episodes, pack(episodes, tmp_path / "whole", **options)[0])
    source, out = upload_tree(episodes, f"{s3}/episodes"), f"{s3}/packed"
    monkeypatch.setenv("KNONIK_SCRATCH_BYTES", str(episode // 2))
    with pytest.raises(
        StorageError, match=rf"{source}/episode_00000\d needs [\d,]+ bytes of scratch.*KNONIK_SCRATCH_BYTES"
    ):
        pack(source, out, **options)
    monkeypatch.setenv("KNONIK_SCRATCH_BYTES", str(file // 2))
    with pytest.raises(StorageError, match=rf"{out}/hlp_00000\d.khlp needs [\d,]+ bytes .* allows {file // 2:,} in"):
        pack(episodes, out, **options)
    assert folder_at(out).head("hlp_manifest.json") is None
    monkeypatch.setenv("KNONIK_SCRATCH_BYTES", "a lot")
    with pytest.raises(ConfigError, match="KNONIK_SCRATCH_BYTES is 'a lot'"):
        pack(episodes, out, **options)


# -- looking at it -------------------------------------------------------------------------------------------------


def test_inspect_looks_at_urls(episodes, s3, tmp_path, scratch):
    out = f"{s3}/packed"
    manifest = pack(episodes, out, storage_profile="training_fast", engine="inline", **OPTIONS)[0]
    local = pack(episodes, tmp_path / "whole", storage_profile="training_fast", engine="inline", **OPTIONS)[0]
    here, there = inspect_path(local, verify=True), inspect_path(manifest, verify=True)
    assert there.pop("path") == manifest
    del here["path"]
    assert there == here
    assert there["damage"] == []
    assert inspect_path(out)["facts"] == here["facts"]
    assert inspect_path(f"{out}/hlp_000001.khlp", verify=True)["damage"] == []
    assert inspect_path(f"{out}/hlp_index.khli")["facts"]["episodes"] == 4
    assert save_frames(manifest, ["episode_000002:30"], tmp_path / "pictures")
    data = bytearray(folder_at(out).read_bytes("hlp_000001.khlp"))
    data[len(data) // 3] ^= 1
    folder_at(out).put_bytes("hlp_000001.khlp", bytes(data))
    folder_at(out).delete(["hlp_000000.khlp"])
    damage = inspect_path(manifest, verify=True)["damage"]
    assert f"{out}/hlp_000000.khlp is missing" in damage
    assert any(f"{out}/hlp_000001.khlp: shard" in text for text in damage)
    with pytest.raises(ConfigError, match=f"There is no object {s3}/nothing and none below it"):
        inspect_path(f"{s3}/nothing")
