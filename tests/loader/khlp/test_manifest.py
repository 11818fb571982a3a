"""The manifest: what it says is checked, and what is wrong is named."""

import json

import pytest

from knonik_loader.errors import ChecksumError, FormatError, UnsupportedFeatureError
from knonik_loader.khlp.manifest import content_digest, load_manifest
from tests.loader.khlp.samples import manifest


def signed(data: dict) -> str:
    return json.dumps({**data, "sha256": content_digest(data)})


def edited(**changes: object) -> str:
    """Of somebody who changes a manifest and computes its digest anew."""
    return signed({**json.loads(manifest().to_json()), **changes})


def test_it_comes_back_and_keeps_its_digest():
    again = load_manifest(manifest().to_json(), "m.json")
    assert again == manifest()
    assert again.digest() == manifest().digest()
    assert load_manifest(manifest().to_json().encode(), "m.json") == again
    assert '"fps": 30,' in manifest().to_json()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '"x"', "[" * 100_000, "\udcff".encode("utf-8", "surrogateescape")]
)
def test_what_is_no_manifest_at_all(text):
    with pytest.raises(FormatError, match=r"m\.json"):
        load_manifest(text, "m.json")


def test_another_version_is_judged_before_anything_else():
    with pytest.raises(UnsupportedFeatureError, match="version 2"):
        load_manifest(edited(format_version=2, whatever=1), "m.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"storage_profil": 1}, "unknown key 'storage_profil'.*'storage_profile'"),
        ({"num_hlps": "many"}, "num_hlps"),
        ({"num_hlps": 2}, "says 2 files"),
        ({"num_shards": 3}, "of 3 shards"),
        ({"storage_profile": "fast"}, "storage_profile"),
        ({"fps": 25}, "says fps 25, but another rate of stream 'rgb_top'"),
        ({"shard_size": 0}, "must be above 0"),
        ({"window_size": -1}, "must be above 0"),
        ({"generation": 0}, "must be above 0"),
        ({"splits": {"train": -1}}, "fractions"),
    ],
)
def test_what_is_wrong_is_named(changes, message):
    with pytest.raises(FormatError, match=rf"m\.json: .*{message}"):
        load_manifest(edited(**changes), "m.json")


def test_unknown_keys_below_the_top_name_their_place():
    data = json.loads(manifest().to_json())
    data["hlps"][0]["byte"] = 3
    with pytest.raises(FormatError, match=r"unknown key 'hlps\.0\.byte'.*'bytes'"):
        load_manifest(json.dumps(data), "m.json")
    data = json.loads(manifest().to_json())
    data["index"]["urn"] = 3
    with pytest.raises(FormatError, match=r"unknown key 'index\.urn'.*'uri'"):
        load_manifest(json.dumps(data), "m.json")


def test_streams_are_checked_like_those_of_a_file():
    data = json.loads(manifest().to_json())
    data["streams"][0]["shape"] = [8, 8, 4]
    with pytest.raises(FormatError, match=r"stream 0 .'top'.*limits"):
        load_manifest(signed(data), "m.json")
    data["streams"] = [{**data["streams"][0], "shape": [8, 8, 3], "stream_id": number} for number in (0, 1)]
    with pytest.raises(FormatError, match="twice"):
        load_manifest(signed(data), "m.json")


def test_what_was_edited_by_hand_is_not_believed():
    text = manifest().to_json()
    stream = '"name": "top"'
    for old, new in (
        ('"fps": 30,\n  "seed"', '"fps": 25,\n  "seed"'),
        ('"shard_size": 45', '"shard_size": 46'),
        ('"storage_profile": "training_fast"', '"storage_profile": "compact_video"'),
        ('"codec": "kimg"', '"codec": "shdr"'),
        (stream, '"name": "wrist"'),
        ('"dataset": "demo"', '"dataset": "demo2"'),
        ('"sha256": "', '"sha256": "0'),
    ):
        assert text.count(old) == 1, old
        with pytest.raises(ChecksumError, match=r"m\.json: was changed .*restore it from its copy"):
            load_manifest(text.replace(old, new), "m.json")
    data = json.loads(text)
    del data["sha256"]
    with pytest.raises(ChecksumError, match="sha256 is missing"):
        load_manifest(json.dumps(data), "m.json")
    # the same content in another spelling is the same content
    assert load_manifest(json.dumps(json.loads(text), sort_keys=True), "m.json") == manifest()
    assert load_manifest(text.replace('"fps": 30,', '"fps": 30.0,'), "m.json") == manifest()


def test_a_file_that_is_listed_twice_is_refused():
    entry = json.loads(manifest().to_json())["hlps"][0]
    twin = {**entry, "uri": "./hlp_000000.khlp"}
    with pytest.raises(FormatError, match=r"lists the file 'hlp_000000\.khlp' 2 times"):
        load_manifest(edited(hlps=[entry, twin], num_hlps=2, num_shards=4), "m.json")
    with pytest.raises(FormatError, match=r"lists the file 'hlp_000000\.khlp' 2 times"):
        load_manifest(edited(index={"uri": "hlp_000000.khlp", "bytes": 1, "crc32c": 2}), "m.json")


def test_json_that_says_two_things_or_no_number_is_refused():
    text = manifest().to_json()
    for wrong in (
        text.replace('"fps": 30,\n  "seed"', '"fps": 30,\n  "fps": 25,\n  "seed"'),
        text.replace('"seed": 0', '"seed": NaN'),
        text.replace('"fps": 30,\n  "seed"', '"fps": 1e999,\n  "seed"'),
        text.replace('"dataset": "demo"', r'"dataset": "\ud800"'),
    ):
        assert wrong != text
        with pytest.raises(FormatError, match=r"m\.json"):
            load_manifest(wrong, "m.json")
