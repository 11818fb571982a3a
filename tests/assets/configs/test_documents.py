"""Documents that nobody should have written: each is one short ConfigError, and none takes long."""

import json

import numpy as np
import pytest

from knonik_assets.configs.documents import local_path, parse_json, parse_yaml, plain
from knonik_assets.configs.presets import resolve_preset
from knonik_loader.errors import ConfigError


def bomb(levels):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


BAD_YAML = {
    "anchors that stand for billions of entries": (bomb(9), "anchors"),
    "a block inside itself": ("&a {metadata: *a}", "nested too deeply"),
    "thousands of brackets": ("[" * 3000, "nested too deeply"),
    "a tag that builds Python objects": ("a: !!python/object/apply:os.getcwd []", "line 1"),
    "an integer of thousands of digits": ("a: 1" + "0" * 5000, "cannot be read as int"),
    "a tag that its value contradicts": ("b: 1\na: !!bool x", "line 2"),
    "a day that does not exist": ("a: !!timestamp 2020-99-01", "2020-99-01"),
    "not a number": ("a: {b: .nan}", "a.b"),
    "a number too large for a float": ("a: 1e999", "finite"),
    "half a character": ('a: "\\ud800"', "surrogate"),
}


@pytest.mark.parametrize(("text", "word"), BAD_YAML.values(), ids=BAD_YAML)
def test_bad_yaml_is_one_short_message(text, word):
    with pytest.raises(ConfigError, match=word) as caught:
        parse_yaml(text, "config.yaml")
    message = str(caught.value)
    assert message.startswith("config.yaml")
    assert len(message) < 250
    assert "\n" not in message


BAD_JSON = {
    "a key twice": ('{"fps": 1, "fps": 2}', "^config.json, line 1: the key 'fps' stands twice in one block.$"),
    "NaN": ('{"fps": NaN}', "^config.json: NaN is no JSON number; give a finite one.$"),
    "a number of thousands of digits": ('{"fps": 1' + "0" * 5000 + "}", "^config.json holds a number that is too long"),
}


@pytest.mark.parametrize(("text", "message"), BAD_JSON.values(), ids=BAD_JSON)
def test_bad_json_says_what_and_where(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_json(text, "config.json")


def test_anchors_that_are_used_sensibly_stay():
    assert parse_yaml("a: &x {key: k}\nb: *x", "config") == {"a": {"key": "k"}, "b": {"key": "k"}}


def test_infinite_numbers_are_refused_in_dicts_too():
    with pytest.raises(ConfigError, match=r"ingest config: metadata\.gains\[1\]"):
        plain({"metadata": {"gains": np.array([1.0, np.inf])}}, "ingest config")
    assert json.dumps(plain({"a": np.array([1.0, 2.0])}, "config")) == '{"a": [1.0, 2.0]}'


@pytest.mark.parametrize("path", ["a\0b", "~nobody-has-this-name/x"])
def test_paths_that_cannot_be(path):
    with pytest.raises(ConfigError, match="input"):
        local_path(path, "input")


@pytest.mark.parametrize("quantum", [1e-30, 5000])
def test_a_depth_step_that_would_lose_everything_is_refused(quantum):
    with pytest.raises(ConfigError, match=r"depth\.quantization_mm"):
        resolve_preset({"depth": {"quantization_mm": quantum}}, None, "config")
