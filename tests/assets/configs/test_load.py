"""Ingest configs: what is accepted, and what is refused with which words."""

import json

import pytest

from knonik_assets.configs.load import config_fingerprint, load_ingest_config
from knonik_assets.configs.presets import PRESETS
from knonik_loader.errors import ConfigError

BASE = {"dir_type": "episodic", "data_type": "hdf5"}


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_files_and_dicts_mean_the_same(tmp_path, suffix):
    config = {**BASE, "fps": 50, "layout": {"images": {"top": "a.b"}, "depth": {"d": {"key": "z", "unit_m": 0.00025}}}}
    path = tmp_path / f"config{suffix}"
    path.write_text(json.dumps(config))
    from_file, from_dict = load_ingest_config(path), load_ingest_config(config)
    assert from_file == from_dict
    assert from_file.layout.images["top"].key == "a.b"
    assert from_file.layout.depths["d"].unit_m == 0.00025


@pytest.mark.parametrize("name", PRESETS)
def test_named_presets(name):
    rgb = load_ingest_config({**BASE, "preset": name}).preset.rgb
    wanted = {"ultra_low": (4, 1), "low": (12, 3), "medium": (18, 3), "high": (30, 30)}[name]
    assert (rgb.codec, rgb.quality, rgb.gop) == ("vp9", *wanted)
    assert (rgb.speed == 9) == (name == "low")


def test_overrides_are_merged_key_by_key():
    preset = load_ingest_config({**BASE, "preset": "high", "preset_overrides": {"rgb": {"gop": 15}}}).preset
    assert (preset.rgb.quality, preset.rgb.gop, preset.depth.quantization_mm, preset.numeric.level) == (30, 15, 2, 9)


def test_a_crf_is_no_jpeg_quality():
    preset = load_ingest_config({**BASE, "preset_overrides": {"rgb": {"codec": "jpeg"}}}).preset
    assert preset.rgb.quality >= 85
    assert load_ingest_config({**BASE, "preset_overrides": {"rgb": {"codec": "jpeg", "gop": 5}}}).preset.inactive() == [
        "rgb.gop"
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fpss": 3}, ["fpss", "fps"]),
        ({"dir_type": "episodik"}, ["dir_type", "episodic"]),
        ({"data_type": None}, ["data_type"]),
        ({"dir_type": "lerobot_v3"}, ["data_type", "lerobot_v3"]),
        ({"fps": 0}, ["fps"]),
        ({"fps": "fast"}, ["fps", "fast"]),
        ({"preset": "mediun"}, ["mediun", "medium"]),
        ({"preset": {"rgb": {"codek": "vp9"}}}, ["codek", "codec"]),
        ({"preset_overrides": {"rgb": {"codec": "h265"}}}, ["codec", "h265"]),
        ({"preset_overrides": {"rgb": {"codec": "jpeg", "quality": 0}}}, ["quality"]),
        ({"layout": {"image": {}}}, ["layout", "image", "images"]),
        ({"layout": {"numeric": {"joint pos": "a"}}}, ["layout.numeric: 'joint pos'", "letters"]),
        ({"layout": {"images": {".top": "a"}}}, ["layout.images: '.top'"]),
        ({"layout": {"depth": {"d" * 129: {"key": "a"}}}}, ["layout.depths: 'ddd"]),
        ({"layout": {"images": {"top": {"kee": "a"}}}}, ["kee", "key"]),
        ({"layout": {"depth": {}, "depths": {"d": "x"}}}, ["depth", "depths"]),
        ({"images": {"top": "a"}}, ["images", "layout"]),
        ({"streams": {}}, ["streams", "npy_separate"]),
        ({"time_source": "header"}, ["time_source"]),
        ({"orientation": "upside_down"}, ["orientation", "flip_vertical"]),
        ({"jpeg_channel_order": "rbg"}, ["jpeg_channel_order", "rbg"]),
        ({"episode_limit": 0}, ["episode_limit"]),
        ({"language": {}}, ["language"]),
        ({"metadata": {"dataset": 3}}, ["dataset"]),
        ({"output_dir": "/x"}, ["output_dir", "output"]),
    ],
)
def test_mistakes_are_named(changes, words):
    with pytest.raises(ConfigError) as caught:
        load_ingest_config({**BASE, **changes})
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message.strip()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["hold"]),
        ("- a\n- b\n", ["hold"]),
        ("a: [1, 2\n", ["line"]),
        ("dir_type: episodic\ndir_type: zarr\n", ["dir_type", "line"]),
        ("x: !!python/object/apply:os.system ['true']\n", ["python"]),
    ],
)
def test_unreadable_files_are_named(tmp_path, text, words):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_ingest_config(path)
    assert str(path) in str(caught.value)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_the_fingerprint_names_what_shapes_episodes():
    base = config_fingerprint(load_ingest_config(BASE))
    same = [{"data_dir": "/elsewhere"}, {"episode_limit": 3}, {"fps": None}]
    other = [{"fps": 20}, {"preset": "high"}, {"layout": {"numeric": {"a": "b"}}}, {"orientation": "rotate_180"}]
    assert all(config_fingerprint(load_ingest_config({**BASE, **change})) == base for change in same)
    assert len({base, *(config_fingerprint(load_ingest_config({**BASE, **change})) for change in other)}) == 5
