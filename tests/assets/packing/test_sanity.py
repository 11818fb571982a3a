"""What is odd about a pack is refused or said, never done in silence."""

import dataclasses
import shutil
import warnings

import pytest

from knonik_assets.configs.pack import PackOptions
from knonik_assets.pack import pack
from knonik_assets.packing.existing import read_manifest
from knonik_assets.packing.facts import EpisodeFacts, StreamFacts
from knonik_assets.packing.plan import make_plan
from knonik_assets.packing.stored import open_packed
from knonik_loader.errors import ConfigError, EpisodeError, PackError
from tests.assets.packing.support import PROFILES, SIZE, read_all, write_episode, write_episodes

STREAMS = (StreamFacts("rgb", "cam", (48, 64, 3)), StreamFacts("numeric", "state", (3,)))


def episode(number, streams=STREAMS, **changes):
    facts = EpisodeFacts(
        episode_id=f"episode_{number:06d}",
        source_id=f"raw_{number}",
        length=20,
        fps=30.0,
        measured_fps=30.0,
        digest=bytes([number]) * 32,
        config_fingerprint="c",
        instruction="",
        shard_size=None,
        streams={stream.key: stream for stream in streams},
        source_fingerprint=f"{number}",
        content=bytes([number]),
    )
    return dataclasses.replace(facts, **changes)


def plan(*episodes, **given):
    return make_plan(episodes or (episode(0),), PackOptions(dataset_name="d", **given))


def test_a_directory_copied_under_another_name_is_refused(tmp_path):
    episodes = write_episodes(tmp_path / "episodes", (6, 7), cameras=1, depth=False)
    shutil.copytree(episodes / "episode_000000", episodes / "episode_000009")
    with pytest.raises(PackError, match=r"episode_000009 is a copy of episode_000000 \(source 'raw_0'\).*--exclude"):
        pack(episodes, tmp_path / "out", "d", engine="inline")
    assert not (tmp_path / "out").exists()
    manifest = pack(episodes, tmp_path / "out", "d", engine="inline", exclude="episode_000009")[0]
    assert list(read_all(manifest)) == ["episode_000000", "episode_000001"]


def test_the_same_recording_ingested_twice_is_refused_and_doubts_are_said():
    with pytest.raises(PackError, match=r"episode_000001 is made from the same recording as episode_000000"):
        plan(episode(0), episode(1, source_id="raw_0", source_fingerprint="0"))
    (said,) = plan(episode(0), episode(1, content=bytes([0]))).warnings
    assert said.startswith("episode_000000 and episode_000001 hold the same recording under two names")
    (said,) = plan(episode(0), episode(1), episode(2, source_fingerprint="1"), episode(3, content=bytes([1]))).warnings
    assert "(2 such pairs)" in said
    (said,) = plan(episode(0), episode(1, source_id="raw_0")).warnings
    assert "have one source_id, though other content" in said
    assert plan(episode(0), episode(1)).warnings == ()
    unknown = {"content": b"", "source_fingerprint": ""}
    assert plan(episode(0, **unknown), episode(1, **unknown)).warnings == ()


@pytest.mark.parametrize("option", [{"quality": 20}, {"gop": 3}, {"chroma": "444"}, {"codec": "vp9"}])
def test_options_of_pictures_without_pictures_are_refused(option):
    for given in ({"streams": "state"}, {}):
        streams = STREAMS if given else STREAMS[1:]
        with pytest.raises(ConfigError, match=rf"{next(iter(option))} means nothing here: no colour stream"):
            plan(episode(0, streams=streams), **given, **option)
    plan(**option)


def test_what_changes_less_than_it_says_is_said():
    for profile in ("compact_video", "training_compressed"):
        (said,) = plan(gop=30, shard_size=8, storage_profile=profile).warnings
        assert said.startswith("gop 30 is longer than a shard of 8 frames")
        assert plan(gop=8, shard_size=8, storage_profile=profile).warnings == ()
    (said,) = plan(seed=3, pack_mode="episode").warnings
    assert said.startswith("seed 3 changes nothing")
    assert plan(seed=3, pack_mode="episode", split="train=1").warnings == ()
    assert plan(seed=3).warnings == ()


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ("24x32", []),
        ("24x24", ["resize cam=24x24 changes the shape", "48x64", "narrower", "24x32 would keep it"]),
        ("10x40", ["wider", "10x13 would keep it"]),
        ("96x128", ["enlarges pictures of 48x64"]),
        ("48x64", []),
    ],
)
def test_a_resize_that_distorts_or_enlarges_is_said(size, words):
    said = plan(resize=f"cam={size}").warnings
    assert len(said) == bool(words)
    assert all(word in said[0] for word in words)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_resize_is_recorded_in_every_file_and_the_manifest(tmp_path, profile):
    episodes = tmp_path / "episodes"
    write_episode(episodes, 0, 9, cameras=1, depth=False)
    write_episode(episodes, 1, 9, cameras=1, depth=False, size=(160, 192))
    options = {"storage_profile": profile, "engine": "inline"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        manifest = pack(episodes, tmp_path / "out", "d", resize="cam_0=40x48", **options)[0]
    wanted = {"filter": "area", "from": [list(SIZE), [160, 192]]}
    (entry,) = (stream for stream in read_manifest(manifest).streams if stream.kind == "rgb")
    assert (entry.shape, entry.params["resize"]) == ((40, 48, 3), wanted)
    with open_packed(tmp_path / "out" / "hlp_000000.khlp") as packed:
        assert packed.index.streams[0].params["resize"] == wanted
    found = read_all(manifest)
    assert {found[name]["rgb_cam_0"].shape for name in found} == {(9, 40, 48, 3)}
    with pytest.warns(UserWarning, match="changes the shape of its pictures"):
        pack(episodes, tmp_path / "square", "d", resize={"rgb_cam_0": (32, 32)}, **options)
    with pytest.raises(PackError, match=r"80x96x3 in 1 episodes.*--resize cam_0=HxW"):
        pack(episodes, tmp_path / "none", "d", **options)


@pytest.mark.parametrize(
    ("given", "params"),
    [
        ({"storage_profile": "compact_video", "codec": "vp9", "quality": 33, "gop": 4, "chroma": "444"}, None),
        ({"storage_profile": "compact_video", "codec": "av1", "quality": 40, "gop": 3}, {"chroma": "420"}),
        ({"storage_profile": "compact_video"}, {"codec": "h264", "gop": 10, "chroma": "420"}),
        ({"storage_profile": "training_fast", "quality": 70, "chroma": "444"}, None),
        ({"storage_profile": "training_compressed", "quality": 80, "gop": 4, "chroma": "444"}, {"delta_quality": 75}),
    ],
)
def test_options_of_a_profile_reach_its_codec_and_the_bytes(tmp_path, given, params):
    episodes = write_episodes(tmp_path / "episodes", (9,), cameras=1, depth=False)
    manifest = pack(episodes, tmp_path / "out", "d", engine="inline", **given)[0]
    (entry,) = (stream for stream in read_manifest(manifest).streams if stream.kind == "rgb")
    wanted = {**{name: value for name, value in given.items() if name != "storage_profile"}, **(params or {})}
    assert {name: entry.params[name] for name in wanted} == wanted
    with open_packed(tmp_path / "out" / "hlp_000000.khlp") as packed:
        table = packed.index.records(0, 0)
        keys = [row for row in range(9) if not table.key_back[row]]
        if "gop" in given:
            assert set(range(0, 9, given["gop"])) <= set(keys)
            assert given["storage_profile"] != "compact_video" or keys == list(range(0, 9, given["gop"]))


def test_av1_without_full_chroma_is_refused_before_anything_is_written(tmp_path):
    episodes = write_episodes(tmp_path / "episodes", (4,), cameras=1, depth=False)
    with pytest.raises(ConfigError, match=r"chroma must be one of 420, not '444'"):
        pack(episodes, tmp_path / "out", "d", engine="inline", codec="av1", chroma="444")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("what", ["metadata", "video", "numeric"])
def test_an_episode_that_cannot_be_read_is_one_clear_error(tmp_path, what):
    episodes = write_episodes(tmp_path / "episodes", (6, 7), cameras=1, depth=False)
    broken = episodes / "episode_000001"
    if what == "metadata":
        (broken / "metadata.json").write_text('{"dataset": ')
    elif what == "video":
        (broken / "rgb_cam_0.mkv").unlink()
        (broken / "rgb_cam_0.mkv").mkdir()
    else:
        shutil.rmtree(broken / "state")
    with pytest.raises(EpisodeError, match="episode_000001") as caught:
        pack(episodes, tmp_path / "out", "d", engine="inline")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
    assert pack(episodes, tmp_path / "out", "d", engine="inline", exclude="episode_000001")[0].exists()
