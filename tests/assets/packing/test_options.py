"""Options are read in every spelling and refused with what is wrong and what to do."""

import pytest

from knonik_assets.configs.pack import PackOptions
from knonik_assets.configs.validation import validate
from knonik_loader.errors import ConfigError


def options(**given):
    return validate(PackOptions, {"dataset_name": "d", **given}, "pack options")


def test_spellings():
    one = options(streams="rgb_a, b", episodes=["episode_000001,episode_000002", "x"], split="train=0.9,val=0.1")
    assert one.streams == ("rgb_a", "b")
    assert one.episodes == ("episode_000001", "episode_000002", "x")
    assert one.split == {"train": 0.9, "val": 0.1}
    assert options(split={"a": 0.25, "b": 0.25, "c": 0.5}).split["c"] == 0.5
    for resize in ("cam=32x48,rgb_b=8X9", ["cam=32x48", "rgb_b=8x9"], {"cam": [32, 48], "rgb_b": "8x9"}):
        assert options(resize=resize).resize == {"cam": (32, 48), "rgb_b": (8, 9)}
    assert options(exclude="a,b").exclude == {"a": "excluded", "b": "excluded"}
    assert options(exclude={"a": "blurred", "b": None}).exclude == {"a": "blurred", "b": "excluded"}
    assert options(chroma=420).chroma == "420"
    assert options().payload == "shdr"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"shard_size": 0}, ["shard_size", "greater than or equal to 1", "0"]),
        ({"window_size": "many"}, ["window_size", "many"]),
        ({"fps": -1}, ["fps", "-1"]),
        ({"fps": 1e300}, ["fps", "1e+300"]),
        ({"fps": 1e-300}, ["fps", "1e-300"]),
        ({"pack_mode": "shard_bach"}, ["pack_mode", "did you mean 'shard_batch'"]),
        ({"storage_profile": "kimg"}, ["storage_profile", "training_fast"]),
        ({"shard_sise": 3}, ["shard_sise", "did you mean 'shard_size'"]),
        ({"split": "train=0.9"}, ["split", "add up to 0.9", "1"]),
        ({"split": "train=0.9,val=0.2"}, ["add up to 1.1"]),
        ({"split": "train=1.5,val=-0.5"}, ["'train'", "1.5"]),
        ({"split": "train"}, ["train=0.9,val=0.1", "'train'"]),
        ({"split": "a=0.5,a=0.4"}, ["'a'", "twice"]),
        ({"split": {"a b": 1}}, ["'a b'"]),
        ({"split": "train=most"}, ["split", "number", "most"]),
        ({"resize": "cam=224"}, ["'cam'", "HxW", "224"]),
        ({"resize": {"cam": [0, 5]}}, ["'cam'", "0x5"]),
        ({"resize": {"cam": [4.5, 4]}}, ["'cam'", "HxW", "4.5"]),
        ({"resize": {"cam": 5}}, ["'cam'", "HxW", "5"]),
        ({"resize": "cam=1x2,cam=3x4"}, ["'cam'", "twice"]),
        ({"resize": "cam=16384x16384"}, ["'cam'", "134217728 pixels"]),
        ({"resize": ""}, ["resize is empty"]),
        ({"streams": []}, ["streams", "one name or several", "[]"]),
        ({"streams": ","}, ["streams", "one name or several", "','"]),
        ({"episodes": 5}, ["episodes", "one name or several", "5"]),
        ({"exclude": 5}, ["exclude", "names of episodes", "5"]),
        ({"seed": True}, ["seed", "a number", "True"]),
        ({"fps": True}, ["fps", "a number", "True"]),
        ({"fps": float("inf")}, ["fps", "finite", "inf"]),
        ({"split": {"train": True}}, ["'train'", "a number", "True"]),
        ({"split": "train=nan"}, ["'train'", "nan"]),
        ({"dataset_name": "a\nb"}, ["dataset_name", "one line"]),
        ({"gop": 70000}, ["gop", "65535"]),
        ({"codec": "h265"}, ["codec", "h265"]),
        ({"codec": "vp9", "storage_profile": "training_fast"}, ["codec means nothing", "training_fast"]),
        ({"codec": "vp9", "storage_profile": "training_compressed"}, ["codec means nothing", "training_compressed"]),
        ({"gop": 5, "storage_profile": "training_fast"}, ["gop means nothing", "decodes alone"]),
        ({"quality": 0, "storage_profile": "training_fast"}, ["quality", "1 to 100"]),
        ({"quality": 60}, ["quality 60", "h264", "0 to 51"]),
        ({"quality": 64, "codec": "av1"}, ["quality 64", "av1", "63"]),
        ({"chroma": "422"}, ["chroma", "'422'"]),
        ({"dataset_name": ""}, ["dataset_name"]),
    ],
)
def test_what_cannot_be_meant_is_refused(given, words):
    with pytest.raises(ConfigError) as caught:
        options(**given)
    message = str(caught.value)
    assert message.startswith("pack options: ")
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_every_option_of_a_profile_is_accepted():
    options(storage_profile="compact_video", codec="vp9", quality=0, gop=5, chroma="444")
    options(storage_profile="training_fast", quality=100, chroma="444")
    options(storage_profile="training_compressed", quality=1, gop=5, chroma="420")
