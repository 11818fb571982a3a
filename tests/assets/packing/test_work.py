"""Files or shards as the unit of work: the same bytes on every engine, bounded memory, the first failure named."""

import json
import os
import shutil
from types import SimpleNamespace

import pytest

from knonik_assets.engine import Engine
from knonik_assets.pack import pack
from knonik_assets.packing import transcode
from knonik_assets.packing.stored import stored_id
from knonik_assets.packing.transcode import one_ahead
from knonik_assets.packing.work import FILES_A_LANE, each, splits_files
from knonik_loader.errors import EpisodeError, PackError
from tests.assets.packing.support import write_episodes
from tests.support.road import tree


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    return write_episodes(tmp_path_factory.mktemp("episodes"), (23, 10, 31), codec="vp9", cameras=1)


def test_few_files_are_split_and_many_are_not():
    assert [splits_files(Engine("processes", 3), files) for files in (1, 3 * FILES_A_LANE - 1, 3 * FILES_A_LANE)] == [
        True,
        True,
        False,
    ]
    assert not splits_files(Engine("inline"), 1)
    assert not splits_files(Engine("processes", 1), 1)


@pytest.mark.parametrize("profile", ["compact_video", "training_compressed"])
def test_the_same_bytes_by_files_and_by_shards(episodes, tmp_path, profile):
    options = {"shard_size": 5, "storage_profile": profile}
    for window, workers, by_shards in ((64, 3, True), (1, 2, False)):
        one, many = tmp_path / f"one_{window}", tmp_path / f"many_{window}"
        pack(episodes, one, "d", window_size=window, engine="inline", **options)
        pack(episodes, many, "d", window_size=window, workers=workers, **options)
        report = json.loads((many / "pack_report.json").read_text())
        assert splits_files(Engine(workers=report["workers"]), report["files_written"]) == by_shards
        assert tree(many) == tree(one)


@pytest.mark.filterwarnings("ignore")
def test_the_same_bytes_on_ray(episodes, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    options = {"shard_size": 9, "storage_profile": "training_compressed"}
    pack(episodes, tmp_path / "inline", "d", engine="inline", **options)
    pack(episodes, tmp_path / "ray", "d", engine="ray", workers=2, **options)
    assert tree(tmp_path / "ray") == tree(tmp_path / "inline")


def test_shards_of_a_killed_run_are_kept_by_files(episodes, tmp_path):
    options = {"shard_size": 5, "window_size": 4, "storage_profile": "training_compressed"}
    pack(episodes, tmp_path / "whole", "d", engine="inline", **options)
    out = tmp_path / "out"
    pack(episodes, out, "d", workers=2, **options)
    for path in (*out.glob("hlp_manifest*"), out / "hlp_000001.khlp"):
        path.unlink()
    kept = stored_id(out / "hlp_000000.khlp")
    assert kept is not None
    pack(episodes, out, "d", workers=2, **options)
    assert tree(out) == tree(tmp_path / "whole")
    report = json.loads((out / "pack_report.json").read_text())
    assert (report["files_written"], report["files_reused"]) == (1, 3)


def test_a_damaged_frame_stops_every_engine_alike_and_leaves_nothing_half_written(episodes, tmp_path, monkeypatch):
    monkeypatch.setattr("knonik_assets.pack_run.survey", lambda *_, **__: SimpleNamespace(warnings=()))
    copy = tmp_path / "episodes"
    shutil.copytree(episodes, copy)
    video = copy / "episode_000001" / "rgb_cam_0.webm"
    data = bytearray(video.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    video.write_bytes(data)
    said = []
    for engine in ({"engine": "inline"}, {"workers": 2}):
        with pytest.raises(EpisodeError) as caught:
            pack(copy, tmp_path / "out", "d", 5, storage_profile="training_compressed", **engine)
        said.append(str(caught.value))
        assert "--exclude episode_000001" in said[-1]
        assert not [path for path in (tmp_path / "out").rglob("*") if "partial" in path.name or ".khlp" in path.name]
        assert not list((tmp_path / "out" / ".knonik" / "progress").glob("*"))
    assert said[0].split(", frames")[0] == said[1].split(", frames")[0]


def test_a_shard_that_does_not_fit_into_memory_says_what_to_do(episodes, tmp_path, monkeypatch):
    monkeypatch.setattr(transcode, "MAX_SHARD_BYTES", 10_000)
    with pytest.raises(PackError, match=r"episode_000000: a shard of 20 frames.*10000 bytes.*smaller --shard-size"):
        pack(episodes, tmp_path / "out", "d", 20, storage_profile="training_fast", engine="inline")
    assert not list((tmp_path / "out").glob("*hlp*"))
    pack(episodes, tmp_path / "out", "d", 1, storage_profile="training_fast", engine="inline")


def test_one_ahead_gives_the_same_and_raises_in_its_place():
    def items():
        yield from (1, 2)
        raise EpisodeError("damaged")

    assert list(one_ahead(iter([3, 1, 2]))) == [3, 1, 2]
    assert list(one_ahead(iter([]))) == []
    coming = one_ahead(items())
    assert [next(coming), next(coming)] == [1, 2]
    with pytest.raises(EpisodeError, match="damaged"):
        next(coming)
    made = []
    ahead = one_ahead(made.append(number) or [number] for number in range(9))
    assert next(ahead) == [0]
    ahead.close()
    assert made in ([0], [0, 1]), "no more than one ahead, and nothing goes on behind the caller's back"


def die(_):
    os._exit(9)


def test_a_dead_worker_is_told_with_what_it_was_at():
    with (
        Engine("processes", 1) as engine,
        pytest.raises(PackError, match=r"hlp_000003\.khlp: .*died 2 times.*fewer --workers.*smaller --shard-size"),
    ):
        each(engine, die, [3], ["hlp_000003.khlp"], None, "files")
