"""Collecting: what was superseded long enough ago goes, the current dataset never, and a crash leaves no half of one."""

import json
import logging
import os
import re
import time
from pathlib import Path

import pytest

from knonik_assets.cli import packer_main
from knonik_assets.collecting import collect_generations
from knonik_assets.ingesting.lock import OutputLock
from knonik_assets.pack import pack
from knonik_assets.packing.existing import read_manifest
from knonik_assets.packing.inspect import inspect_path
from knonik_loader import ShardedDataLoader
from knonik_loader.errors import ConfigError, PackError, StorageError
from tests.assets.packing.support import read_all, write_episodes
from tests.support.road import tree

DAY = 86_400


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    return write_episodes(tmp_path_factory.mktemp("episodes"), (12, 9), cameras=1, depth=False)


@pytest.fixture
def out(episodes, tmp_path):
    """Three generations: the first superseded 20 days ago, the second 3 days ago."""
    folder = tmp_path / "out"
    for shard_size in (4, 5, 6):
        repack(episodes, folder, shard_size)
    age(folder, {1: 40, 2: 20, 3: 3})
    return folder


def repack(episodes, folder, shard_size, **options) -> Path:
    return pack(
        episodes,
        folder,
        "d",
        shard_size,
        2,
        storage_profile="training_fast",
        engine="inline",
        overwrite=True,
        **options,
    )[0]


def age(folder, days: dict[int, float]) -> None:
    """Make generations look as if they had been packed so many days ago."""
    now = time.time()
    for generation, old in days.items():
        place = folder if generation == 1 else folder / f"gen_{generation:04d}"
        for path in (*place.glob("hlp_*.kh*"), folder / f"hlp_manifest.{generation}.json"):
            if path.exists():
                os.utime(path, (now - old * DAY,) * 2)
    os.utime(folder / "hlp_manifest.json", (now - min(days.values()) * DAY,) * 2)


def names(folder) -> set[str]:
    return set(tree(folder))


def generations(folder) -> set[int]:
    return {int(path.name.split(".")[1]) for path in folder.glob("hlp_manifest.*.json")}


def test_what_was_superseded_long_ago_goes_and_the_rest_stays_as_it_is(out):
    before = tree(out)
    files = [name for name in before if name.startswith(("hlp_0", "hlp_index"))]
    (removed,) = collect_generations(out, 14)
    assert (removed.generation, removed.finished, removed.files) == (1, True, len(files) + 1)
    assert removed.bytes == sum(len(before[name]) for name in files)
    assert round(removed.days) == 20
    assert "generation 1, superseded 20.0 days ago" in str(removed)
    gone = {*files, "hlp_manifest.1.json"}
    assert tree(out) == {name: data for name, data in before.items() if name not in gone}
    assert collect_generations(out, 14) == []
    for manifest in ("hlp_manifest.json", "hlp_manifest.2.json"):
        assert inspect_path(out / manifest, verify=True)["damage"] == []


def test_days_count_from_when_it_was_superseded(out):
    """A generation that is 20 days old, but was the current one until 3 days ago, may still be trained on."""
    assert [removed.generation for removed in collect_generations(out, 14)] == [1]
    assert [removed.generation for removed in collect_generations(out, 3.5)] == []
    assert [removed.generation for removed in collect_generations(out, 2.5)] == [2]
    assert not (out / "gen_0002").exists()
    assert generations(out) == {3}


def test_nothing_superseded_is_kept_for_no_days_and_the_current_one_for_ever(out):
    assert [removed.generation for removed in collect_generations(out, 0)] == [1, 2]
    assert {name.split("/")[0] for name in names(out)} == {"gen_0003", "hlp_manifest.3.json", "hlp_manifest.json"}
    assert collect_generations(out, 0, now=time.time() + 1000 * DAY) == []
    read_all(out / "hlp_manifest.json")


def test_infinity_keeps_everything_and_nonsense_is_refused(out):
    assert collect_generations(out, float("inf")) == []
    assert generations(out) == {1, 2, 3}
    for wrong in (-1, float("nan"), "14", None, True):
        with pytest.raises(ConfigError, match="keep_days must be a number of days"):
            collect_generations(out, wrong)


def test_without_a_current_manifest_nothing_is_removed(out):
    (out / "hlp_manifest.json").unlink()
    before = tree(out)
    assert collect_generations(out, 0) == []
    (out / "hlp_manifest.json").write_text("{")
    with pytest.raises(PackError, match=r"hlp_manifest\.json"):
        collect_generations(out, 0)
    (out / "hlp_manifest.json").unlink()
    assert tree(out) == before


def test_while_the_current_dataset_is_damaged_no_older_one_goes(out):
    (out / "gen_0003" / "hlp_000001.khlp").unlink()
    before = tree(out)
    with pytest.raises(PackError, match=r"hlp_000001\.khlp is missing: .* no older one is removed"):
        collect_generations(out, 0)
    assert tree(out) == before


def test_a_run_that_writes_there_is_not_disturbed(out):
    before = tree(out)
    with OutputLock(out, "knonik pack of somebody"), pytest.raises(StorageError, match="knonik pack of somebody"):
        collect_generations(out, 14)
    assert tree(out) == before


def test_going_back_to_an_older_generation(out):
    """Whoever copies an old manifest over the current one makes the others the superseded ones."""
    (out / "hlp_manifest.json").write_bytes((out / "hlp_manifest.1.json").read_bytes())
    assert collect_generations(out, 1) == []
    assert [removed.generation for removed in collect_generations(out, 1, time.time() + 2 * DAY)] == [2, 3]
    assert read_manifest(out / "hlp_manifest.json").generation == 1
    assert inspect_path(out, verify=True)["damage"] == []


def test_files_of_others_stay(out):
    (out / "hlp_000077.khlp").write_text("a note that is only named alike")
    (out / "notes.txt").write_text("mine")
    (out / "gen_0002" / "notes.txt").write_text("mine")
    collect_generations(out, 0)
    for name in ("hlp_000077.khlp", "notes.txt", "gen_0002/notes.txt"):
        assert (out / name).exists()
    assert len(list((out / "gen_0002").iterdir())) == 1


@pytest.mark.parametrize("at", range(10))
def test_stopped_anywhere_no_manifest_is_without_its_files_and_the_next_one_goes_on(out, monkeypatch, at):
    real, calls = Path.unlink, []

    def failing(self, missing_ok=False):
        if self.suffix in {".json", ".khlp", ".khli"}:
            if len(calls) == at:
                raise OSError(5, "pulled the plug", str(self))
            calls.append(self)
        real(self, missing_ok)

    # two manifests, two indexes, three files each
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", failing)
        with pytest.raises(StorageError, match=re.escape(str(out))):
            collect_generations(out, 2)
    for manifest in out.glob("hlp_manifest*.json"):
        assert inspect_path(manifest, verify=True)["damage"] == [], manifest
    collect_generations(out, 2)
    assert {name.split("/")[0] for name in names(out)} == {"gen_0003", "hlp_manifest.3.json", "hlp_manifest.json"}


def test_leftovers_of_a_killed_pack_are_kept_as_long_for_it_to_go_on(episodes, out):
    repack(episodes, out, 7)
    (out / "hlp_manifest.4.json").unlink()
    (out / "hlp_manifest.json").write_bytes((out / "hlp_manifest.3.json").read_bytes())
    (out / "gen_0004" / ".hlp_000009.khlp.ab12.partial").write_bytes(b"half")
    assert [removed.generation for removed in collect_generations(out, 2)] == [1, 2]
    assert (out / "gen_0004").exists()
    age(out, {3: 3, 4: 5})
    assert collect_generations(out, 2) == []  # its youngest file is of today
    os.utime(out / "gen_0004" / ".hlp_000009.khlp.ab12.partial", (0, 0))
    (removed,) = collect_generations(out, 2)
    assert (removed.generation, removed.finished) == (4, False)
    assert not (out / "gen_0004").exists()


def test_pack_collects_when_asked_even_if_nothing_changed(episodes, out, caplog):
    before = tree(out)
    repack(episodes, out, 6)
    assert tree(out) == before
    with caplog.at_level(logging.INFO, "knonik_assets.pack"):
        repack(episodes, out, 6, collect=True)
    assert "removed generation 1, superseded 20.0 days ago" in caplog.text
    assert generations(out) == {2, 3}
    repack(episodes, out, 8, collect=True, keep_days=0)
    assert generations(out) == {4}
    with pytest.raises(ConfigError, match="keep_days says what collect may remove"):
        repack(episodes, out, 8, keep_days=3)
    with pytest.raises(ConfigError, match="collect must be True or False"):
        repack(episodes, out, 8, collect="yes")
    with pytest.raises(ConfigError, match="keep_days must be"):
        repack(episodes, out, 8, collect=True, keep_days=-3)


def test_the_command_says_what_it_removed(episodes, out, capsys):
    arguments = ["pack", "--input-dir", episodes, "--output-dir", out, "--dataset-name", "d", "--shard-size", 6]
    arguments += ["--window-size", 2, "--storage-profile", "training_fast", "--quiet", "--collect"]
    assert packer_main([str(argument) for argument in (*arguments, "--keep-days", 30)]) == 0
    assert capsys.readouterr().err == ""
    assert packer_main([str(argument) for argument in arguments]) == 0
    said = capsys.readouterr()
    assert said.out == f"{out / 'hlp_manifest.json'}\n"
    assert said.err.startswith("removed: generation 1, superseded 20.0 days ago: ")
    assert generations(out) == {2, 3}
    arguments.remove("--collect")
    assert packer_main([str(argument) for argument in (*arguments, "--keep-days", 30)]) == 2
    assert "--collect" in capsys.readouterr().err


def loader(manifest: Path) -> ShardedDataLoader:
    config = {"decode_mode": "random_access", "hlp_manifest": str(manifest), "chunk_len": 2, "batch_size": 3}
    return ShardedDataLoader({**config, "rank": 0, "world_size": 1})


def test_a_job_on_an_old_manifest_finishes_and_resumes_while_two_repacks_land(episodes, tmp_path):
    out = tmp_path / "out"
    repack(episodes, out, 4)
    keys = ("_episode_ids", "_frame_indices", "rgb_cam_0", "state")

    def seen(batch):
        return json.dumps([batch[key] if isinstance(batch[key], list) else batch[key].tolist() for key in keys])

    with loader(out / "hlp_manifest.json") as undisturbed:
        wanted = [seen(batch) for batch in undisturbed]
    assert len(wanted) >= 5
    with loader(out / "hlp_manifest.json") as job:
        got = []
        for number, batch in enumerate(job):
            got.append(seen(batch))
            if number == 0:
                repack(episodes, out, 5, collect=True)
            elif number == 2:
                repack(episodes, out, 6, exclude=["episode_000001"], collect=True)
                state = job.state_dict()
    assert got == wanted
    # a new process of the job names the manifest that it began with
    with loader(out / "hlp_manifest.1.json") as resumed:
        resumed.load_state_dict(state)
        assert [seen(batch) for batch in resumed] == wanted[3:]
    assert read_manifest(out / "hlp_manifest.json").generation == 3
    with loader(out / "hlp_manifest.json") as new:
        assert {name for batch in new for name in batch["_episode_ids"]} == {"episode_000000"}
    before = tree(out)
    repack(episodes, out, 6, exclude=["episode_000001"])
    assert tree(out) == before
