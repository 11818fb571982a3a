"""Killed runs, re-packs and refusals: what stands is never half-written, changed in silence or lost."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from knonik_assets import pack_run
from knonik_assets.collecting import collect_generations
from knonik_assets.ingesting.lock import OutputLock
from knonik_assets.pack import pack
from knonik_assets.packing.existing import read_manifest
from knonik_assets.packing.stored import open_packed
from knonik_loader import ShardedDataLoader
from knonik_loader.errors import ConfigError, EpisodeError, PackError, StorageError
from tests.assets.packing.support import read_all, write_episode, write_episodes
from tests.support.road import tree
from tests.support.stamps import read_stamp


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    return write_episodes(tmp_path_factory.mktemp("episodes"), (40, 50, 60), cameras=1)


def everything(folder):
    """Path → (bytes, time of change) of every file there is."""
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


PACK = """
import sys
from knonik_assets.pack import pack
engine = {"engine": "inline"} if sys.argv[4] == "inline" else {"engine": sys.argv[4], "workers": 2}
pack(sys.argv[1], sys.argv[2], "d", 5, int(sys.argv[5]), storage_profile=sys.argv[3], overwrite=True, **engine)
"""


def kill_in_the_middle(episodes, out, profile, engine, ready, window=4):
    """Run PACK in its own session and kill all of it as soon as ``ready()`` holds; False: it was faster."""
    arguments = [sys.executable, "-c", PACK, str(episodes), str(out), profile, engine, str(window)]
    with subprocess.Popen(arguments, start_new_session=True, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            if ready():
                os.killpg(process.pid, signal.SIGKILL)
                return True
            time.sleep(0.001)
    return False


@pytest.mark.parametrize(
    ("profile", "engine", "window", "stages"),
    [
        ("compact_video", "inline", 4, (1, 4)),
        ("training_compressed", "processes", 4, (1, 4)),  # by files
        ("training_compressed", "processes", 8, (1, 2)),  # by shards
    ],
)
def test_a_killed_pack_goes_on_to_the_same_bytes(episodes, tmp_path, profile, engine, window, stages):
    out = tmp_path / "out"
    for files in stages:
        ready = lambda files=files: len(list(out.glob("hlp_*.khlp"))) >= files  # noqa: E731
        assert kill_in_the_middle(episodes, out, profile, engine, ready, window)
        assert not (out / "hlp_manifest.json").exists()
    kept = {path.name: path.stat().st_mtime_ns for path in out.glob("hlp_*.khlp")}
    whole = pack(episodes, tmp_path / "whole", "d", 5, window, storage_profile=profile, engine="inline")[0]
    resumed = pack(episodes, out, "d", 5, window, storage_profile=profile, workers=2)[0]
    assert tree(out) == tree(tmp_path / "whole")
    assert read_manifest(whole) == read_manifest(resumed)
    assert {name: (out / name).stat().st_mtime_ns for name in kept} == kept
    report = json.loads((out / "pack_report.json").read_text())
    assert report["files_reused"] == len(kept)
    assert report["files_reused"] + report["files_written"] == read_manifest(resumed).num_hlps


@pytest.mark.parametrize("damage", ["payload", "padding", "cut"])
def test_a_damaged_leftover_is_written_again(episodes, tmp_path, damage):
    options = {"storage_profile": "training_fast", "engine": "inline"}
    pack(episodes, tmp_path / "whole", "d", 5, 4, **options)
    out = tmp_path / "out"
    shutil.copytree(tmp_path / "whole", out)
    for path in (*out.glob("hlp_manifest*"), out / "hlp_index.khli", out / "pack_report.json"):
        path.unlink()
    data = bytearray((out / "hlp_000001.khlp").read_bytes())
    if damage == "cut":
        data = data[: len(data) // 2]
    else:
        # shards begin at round places, and nothing but zeros fills the bytes before them
        with open_packed(out / "hlp_000001.khlp") as packed:
            second = packed.index.shard(1).data_offset
            end = packed.index.shard(0).data_offset + packed.index.shard(0).data_length
        assert end < second
        data[len(data) // 3 if damage == "payload" else second - 1] ^= 1
    (out / "hlp_000001.khlp").write_bytes(data)
    (out / ".hlp_000002.khlp.1234.partial").write_bytes(b"half")
    pack(episodes, out, "d", 5, 4, **options)
    assert tree(out) == tree(tmp_path / "whole")
    assert json.loads((out / "pack_report.json").read_text())["files_written"] == 1


def test_leftovers_of_other_options_are_not_removed_in_silence(episodes, tmp_path):
    options = {"storage_profile": "training_fast", "engine": "inline"}
    pack(episodes, tmp_path, "d", 5, 4, **options)
    for path in tmp_path.glob("hlp_manifest*"):
        path.unlink()
    before = tree(tmp_path)
    with pytest.raises(PackError, match=r"hlp_000000\.khlp.*killed.*--overwrite"):
        pack(episodes, tmp_path, "d", 7, 4, **options)
    assert tree(tmp_path) == before
    pack(episodes, tmp_path, "d", 7, 40, overwrite=True, **options)
    assert len(list(tmp_path.glob("hlp_*.khlp"))) == 1
    (tmp_path / "hlp_manifest.json").unlink()
    (tmp_path / "hlp_manifest.1.json").unlink()
    (tmp_path / "hlp_000009.khlp").write_text("a note of mine")
    with pytest.raises(PackError, match=r"hlp_000009\.khlp.*remove them, or name another") as caught:
        pack(episodes, tmp_path, "d", 7, 40, overwrite=True, **options)
    assert "--overwrite" not in str(caught.value)
    assert (tmp_path / "hlp_000009.khlp").read_text() == "a note of mine"


def test_unchanged_input_and_options_touch_nothing(episodes, tmp_path):
    options = {"storage_profile": "training_fast", "engine": "inline"}
    paths = pack(episodes, tmp_path, "d", 9, **options)
    before = everything(tmp_path)
    folder = tmp_path.stat().st_mtime_ns
    assert pack(episodes, tmp_path, "d", 9, **options) == paths
    assert pack(episodes, tmp_path, "d", 9, overwrite=True, **options) == paths
    assert everything(tmp_path) == before
    assert tmp_path.stat().st_mtime_ns == folder


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shard_size": 10}, "shard-size 9 -> 10"),
        ({"dataset_name": "e"}, "dataset-name d -> e"),
        ({"storage_profile": "training_compressed"}, "storage-profile training_fast -> training_compressed"),
        ({"fps": 30.1}, "fps 30 -> 30.1"),
        ({"seed": 4}, "seed 0 -> 4"),
        ({"window_size": 2}, "window-size 64 -> 2"),
        ({"split": {"train": 1}}, 'split {} -> {"train": 1'),
        ({"streams": "state"}, "stream action gone"),
        ({"resize": "cam_0=40x48"}, "rgb_cam_0 (80, 96, 3) -> (40, 48, 3)"),
        ({"quality": 50}, '"quality": 95'),
        ({"quality": 95}, "how JPEGs pass"),
        ({"exclude": ["episode_000001"]}, "1 gone episodes (episode_000001)"),
    ],
)
def test_a_repack_without_overwrite_says_what_would_change(episodes, tmp_path, change, words):
    options = {"dataset_name": "d", "shard_size": 9, "storage_profile": "training_fast", "engine": "inline"}
    pack(episodes, tmp_path, **options)
    before = everything(tmp_path)
    with pytest.raises(PackError, match=r"--overwrite") as caught:
        pack(episodes, tmp_path, **{**options, **change})
    assert words in str(caught.value), str(caught.value)
    assert everything(tmp_path) == before


def test_a_changed_and_a_new_episode_are_named(tmp_path):
    episodes = write_episodes(tmp_path / "episodes", (6, 7), cameras=0, depth=False)
    pack(episodes, tmp_path / "out", "d", engine="inline")
    write_episode(episodes, 1, 8, cameras=0, depth=False)
    write_episode(episodes, 2, 5, cameras=0, depth=False)
    with pytest.raises(PackError, match=r"1 new episodes \(episode_000002\); 1 changed episodes \(episode_000001\)"):
        pack(episodes, tmp_path / "out", "d", engine="inline")


def test_overwrite_makes_a_generation_beside_the_old_one(episodes, tmp_path):
    options = {"storage_profile": "training_fast", "engine": "inline"}
    pack(episodes, tmp_path, "d", 9, 5, **options)
    first = tree(tmp_path)
    paths = pack(episodes, tmp_path, "d", 6, 5, overwrite=True, **options)
    second = tree(tmp_path)
    assert {name: second[name] for name in first if name != "hlp_manifest.json"} == {
        name: data for name, data in first.items() if name != "hlp_manifest.json"
    }
    manifest = read_manifest(paths[0])
    assert (manifest.generation, manifest.shard_size) == (2, 6)
    assert {entry.uri.split("/")[0] for entry in (*manifest.hlps, manifest.index)} == {"gen_0002"}
    assert second["hlp_manifest.json"] == second["hlp_manifest.2.json"]
    # the old generation reads as before, by its own manifest
    old, new = read_all(tmp_path / "hlp_manifest.1.json"), read_all(paths[0])
    for name in old:
        for key in old[name]:
            assert (old[name][key] == new[name][key]).all()
    pack(episodes, tmp_path, "d", 9, 5, overwrite=True, **options)
    assert read_manifest(paths[0]).generation == 3
    assert (tmp_path / "hlp_manifest.1.json").read_bytes() == first["hlp_manifest.1.json"]


def test_a_job_on_the_old_generation_goes_on_undisturbed(episodes, tmp_path):
    options = {"storage_profile": "training_fast", "engine": "inline"}
    pack(episodes, tmp_path, "d", 9, 5, **options)
    config = {
        "decode_mode": "random_access",
        "hlp_manifest": str(tmp_path / "hlp_manifest.json"),
        "chunk_len": 3,
        "batch_size": 8,
        "framework": "numpy",
        "rank": 0,
        "world_size": 1,
    }
    seen = 0
    with ShardedDataLoader(config) as loader:
        for number, batch in enumerate(loader):
            if number == 1:
                pack(episodes, tmp_path, "d", 6, 5, overwrite=True, exclude=["episode_000000"], **options)
            names = zip(batch["_episode_ids"], batch["_frame_indices"], batch["rgb_cam_0"], strict=True)
            for name, anchor, frames in names:
                episode = int(name.removeprefix("episode_"))
                assert [read_stamp(image) for image in frames] == [
                    (0, episode, int(anchor) + step) for step in range(3)
                ]
                seen += 1
        # anchors whose window reaches past the end are left out
        assert seen == sum(length - 2 for length in (40, 50, 60)) // 8 * 8
    with ShardedDataLoader(config) as loader:
        assert {name for batch in loader for name in batch["_episode_ids"]} == {"episode_000001", "episode_000002"}


def test_a_generation_that_has_a_manifest_is_never_written_over(episodes, tmp_path):
    options = {"storage_profile": "training_fast", "engine": "inline", "overwrite": True}
    pack(episodes, tmp_path, "d", 9, **options)
    pack(episodes, tmp_path, "d", 6, **options)
    # somebody goes back to the first generation, while jobs still run on the second
    shutil.copy(tmp_path / "hlp_manifest.1.json", tmp_path / "hlp_manifest.json")
    before = everything(tmp_path / "gen_0002"), (tmp_path / "hlp_manifest.2.json").read_bytes()
    manifest = pack(episodes, tmp_path, "d", 7, **options)[0]
    assert read_manifest(manifest).generation == 3
    assert (everything(tmp_path / "gen_0002"), (tmp_path / "hlp_manifest.2.json").read_bytes()) == before
    # going back and asking for the newest one again makes nothing new
    newest = tree(tmp_path)
    shutil.copy(tmp_path / "hlp_manifest.1.json", tmp_path / "hlp_manifest.json")
    pack(episodes, tmp_path, "d", 7, **options)
    assert tree(tmp_path) == newest


def test_a_killed_repack_leaves_the_old_dataset_and_goes_on(episodes, tmp_path):
    out = tmp_path / "out"
    pack(episodes, out, "d", 20, storage_profile="training_compressed", engine="inline")
    before = tree(out)
    ready = lambda: len(list((out / "gen_0002").glob("hlp_*.khlp"))) >= 2  # noqa: E731
    assert kill_in_the_middle(episodes, out, "training_compressed", "processes", ready)
    assert {name: data for name, data in tree(out).items() if not name.startswith("gen_")} == before
    # another plan takes the folder over; the first one is then made from scratch, as if nothing had been
    options = {"storage_profile": "training_compressed", "engine": "inline", "overwrite": True}
    pack(episodes, out, "d", 7, 4, **options)
    assert read_manifest(out / "hlp_manifest.json").generation == 2
    assert read_manifest(out / "hlp_manifest.json").shard_size == 7
    read_all(out / "hlp_manifest.json")
    read_all(out / "hlp_manifest.1.json")


def test_killed_just_before_the_manifest_it_finishes_the_same_generation(episodes, tmp_path):
    options = {"storage_profile": "training_fast", "engine": "inline"}
    pack(episodes, tmp_path, "d", 9, **options)
    first = (tmp_path / "hlp_manifest.json").read_bytes()
    pack(episodes, tmp_path, "d", 6, overwrite=True, **options)
    done = tree(tmp_path)
    (tmp_path / "hlp_manifest.json").write_bytes(first)
    pack(episodes, tmp_path, "d", 6, overwrite=True, **options)
    assert tree(tmp_path) == done
    # the same before the first generation's manifest
    (tmp_path / "hlp_manifest.json").unlink()
    pack(episodes, tmp_path, "d", 6, **options)
    assert tree(tmp_path) == done


def test_killed_just_before_the_manifest_another_plan_leaves_a_whole_generation_behind(episodes, tmp_path):
    """Nobody can tell it from one that somebody went back from, so it is kept and collected like any other."""
    options = {"storage_profile": "training_fast", "engine": "inline", "overwrite": True}
    pack(episodes, tmp_path, "d", 9, **options)
    first = (tmp_path / "hlp_manifest.json").read_bytes()
    pack(episodes, tmp_path, "d", 6, **options)
    (tmp_path / "hlp_manifest.json").write_bytes(first)
    left = {name: data for name, data in tree(tmp_path).items() if name.startswith(("gen_0002", "hlp_manifest.2"))}
    assert read_manifest(pack(episodes, tmp_path, "d", 7, **options)[0]).generation == 3
    assert {name: data for name, data in tree(tmp_path).items() if name in left} == left
    read_all(tmp_path / "hlp_manifest.2.json")
    assert collect_generations(tmp_path, 14) == []
    assert [each.generation for each in collect_generations(tmp_path, 0)] == [1, 2]
    assert sorted(path.name for path in tmp_path.glob("*")) == sorted(
        [".knonik", "gen_0003", "hlp_manifest.3.json", "hlp_manifest.json", "pack_report.json"]
    ), "nothing is left of it"
    read_all(tmp_path / "hlp_manifest.json")


def test_the_current_manifest_is_what_is_written_last(episodes, tmp_path, monkeypatch):
    """Behind it nothing is left to finish: a run that is killed at any write is taken up by the next one."""
    options = {"storage_profile": "training_fast", "engine": "inline"}
    pack(episodes, tmp_path / "whole", "d", 9, **options)
    names, real = [], os.replace

    def killed(source, target):
        name = Path(target).name
        if name == stop:
            raise KeyboardInterrupt
        if Path(target).suffix in {".json", ".khli"}:  # counts of progress go the same way
            names.append(name)
        real(source, target)

    stop = ""
    monkeypatch.setattr(Path, "replace", killed)
    pack(episodes, tmp_path / "order", "d", 9, **options)
    assert names == ["pack_report.json", "hlp_index.khli", "hlp_manifest.1.json", "hlp_manifest.json"]
    for stop in tuple(names):
        out = tmp_path / stop
        with pytest.raises(KeyboardInterrupt):
            pack(episodes, out, "d", 9, **options)
        assert not (out / "hlp_manifest.json").exists()
        (out / f".{stop}.77.partial").write_bytes(b"half")
        stop = ""
        pack(episodes, out, "d", 9, **options)
        assert tree(out) == tree(tmp_path / "whole")
        assert (out / "pack_report.json").exists()


def test_a_dataset_with_a_missing_file_is_not_called_unchanged(episodes, tmp_path):
    options = {"storage_profile": "training_fast", "engine": "inline"}
    pack(episodes, tmp_path, "d", 9, 5, **options)
    (tmp_path / "hlp_000001.khlp").unlink()
    with pytest.raises(PackError, match=r"hlp_000001\.khlp is missing.*--overwrite"):
        pack(episodes, tmp_path, "d", 9, 5, **options)
    manifest = pack(episodes, tmp_path, "d", 9, 5, overwrite=True, **options)[0]
    assert read_manifest(manifest).generation == 2
    (tmp_path / "hlp_manifest.json").write_text("{}")
    with pytest.raises(PackError, match=r"hlp_manifest\.json.*format_version.*another directory"):
        pack(episodes, tmp_path, "d", 9, 5, overwrite=True, **options)


def test_one_run_at_a_time(episodes, tmp_path):
    with (
        OutputLock(tmp_path, "knonik pack of somebody"),
        pytest.raises(StorageError, match="knonik pack of somebody"),
    ):
        pack(episodes, tmp_path, "d", engine="inline")


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"input_dir": "absent"}, ConfigError, ["absent"]),
        ({"input_dir": "ftp://host/episodes"}, ConfigError, ["input_dir ftp://host/episodes", "s3, gs, az"]),
        ({"output_dir": "s3:///out"}, ConfigError, ["output_dir s3:///out names no bucket"]),
        ({"episodes": ["episode_00002"]}, ConfigError, ["episodes", "did you mean 'episode_000002'"]),
        ({"exclude": ["episode_7"]}, ConfigError, ["exclude", "'episode_7'"]),
        ({"exclude": ["episode_000000", "episode_000001", "episode_000002"]}, PackError, ["nothing is left"]),
        ({"workers": 0}, ConfigError, ["workers", "0"]),
        ({"workers": "2"}, ConfigError, ["workers", "'2'"]),
        ({"overwrite": "no"}, ConfigError, ["overwrite", "'no'"]),
        ({"output_dir": None}, ConfigError, ["output_dir", "None"]),
        ({"engine": "cloud"}, ConfigError, ["engine", "cloud"]),
        ({"streams": ["cam_7"]}, ConfigError, ["streams", "cam_7"]),
        ({"gop": 3, "storage_profile": "training_fast"}, ConfigError, ["gop"]),
    ],
)
def test_a_mistake_touches_no_output(episodes, tmp_path, change, error, words):
    options = {"input_dir": episodes, "output_dir": tmp_path / "out", "dataset_name": "d", "engine": "inline"}
    with pytest.raises(error) as caught:
        pack(**{**options, **change})
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert not (tmp_path / "out").exists()


def test_an_empty_folder_holds_no_episodes(tmp_path):
    (tmp_path / "in").mkdir()
    with pytest.raises(PackError, match="No ingested episode in"):
        pack(tmp_path / "in", tmp_path / "out", "d")


@pytest.mark.parametrize("stream", ["state", "frame_time"])
def test_a_damaged_number_is_noticed(tmp_path, stream):
    episodes = write_episodes(tmp_path / "episodes", (12, 12), cameras=0, depth=False)
    files = [path for path in (episodes / "episode_000001" / stream).rglob("*") if path.is_file()]
    (file,) = [path for path in files if not path.name.startswith(".")]
    data = bytearray(file.read_bytes())
    data[-5] ^= 4
    file.write_bytes(data)
    with pytest.raises(EpisodeError, match=rf"episode_000001.{stream}.*checksum.*--exclude episode_000001"):
        pack(episodes, tmp_path / "out", "d", engine="inline")
    assert not (tmp_path / "out").exists()
    pack(episodes, tmp_path / "out", "d", engine="inline", exclude=["episode_000001"])
    if stream != "frame_time":
        pack(episodes, tmp_path / "other", "d", engine="inline", streams="action")


def test_a_damaged_episode_is_named_with_what_to_do(tmp_path):
    episodes = write_episodes(tmp_path / "episodes", (12, 12, 12), cameras=1, depth=False)
    video = episodes / "episode_000001" / "rgb_cam_0.mkv"
    whole = video.read_bytes()
    video.write_bytes(whole[:-100])
    with pytest.raises(EpisodeError, match=r"rgb_cam_0\.mkv has .* --exclude episode_000001"):
        pack(episodes, tmp_path / "out", "d", engine="inline")
    assert not (tmp_path / "out").exists()
    # of the right size, but not the right content: only reading it tells
    video.write_bytes(whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2))
    with pytest.raises(EpisodeError, match=r"episode_000001.*--exclude episode_000001"):
        pack(episodes, tmp_path / "out", "d", workers=2)
    assert not list((tmp_path / "out").glob("hlp_manifest*"))
    manifest = pack(episodes, tmp_path / "out", "d", workers=2, overwrite=True, exclude=["episode_000001"])[0]
    assert list(read_all(manifest)) == ["episode_000000", "episode_000002"]


def test_an_episode_that_is_replaced_meanwhile_is_never_mixed_in(tmp_path, monkeypatch):
    episodes = write_episodes(tmp_path / "episodes", (9, 8))
    real = pack_run.write_files

    def replacing(*arguments):
        write_episode(episodes, 0, 9, fps=25.0)
        return real(*arguments)

    monkeypatch.setattr(pack_run, "write_files", replacing)
    with pytest.raises((PackError, EpisodeError), match="was replaced"):
        pack(episodes, tmp_path / "out", "d", engine="inline")
    assert not (tmp_path / "out" / "hlp_manifest.json").exists()
    assert not list((tmp_path / "out").glob("hlp_*.khlp"))  # else a later run could take it for the old episode's
