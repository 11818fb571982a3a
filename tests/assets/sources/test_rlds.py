"""RLDS datasets as TFDS writes them, compared with protobuf's own reading."""

import gzip
import json
import struct
import zlib

import numpy as np
import pytest

from knonik.ingest import run
from knonik_assets.cli import main
from knonik_assets.sources import rlds_records
from knonik_assets.sources.base_contract import Expected, SourceContract
from knonik_assets.sources.detect import detect
from knonik_assets.sources.images import decode_image
from knonik_assets.sources.rlds_records import parse_example
from knonik_loader.errors import EpisodeError, SourceError
from tests.assets.sources.support import frames, jpeg, only_episode, png, source, stream
from tests.support.rlds_data import (
    TEXT,
    Example,
    dataset,
    example,
    features,
    framed,
    image,
    sequence,
    step_leaves,
    tensor,
)
from tests.support.road import write_json
from tests.support.stamps import episode_arrays, read_stamp
from tests.support.zarr_data import near_depth

FLAGS = {"is_first": tensor("bool"), "is_last": tensor("bool")}


def flags(rows):
    return {"steps/is_first": [1, *[0] * (rows - 1)], "steps/is_last": [*[0] * (rows - 1), 1]}


def identities(pictures):
    return [read_stamp(decode_image(picture)) for picture in pictures]


def rows_of(number):
    return 4 + number % 3


def leaves(number):
    rows = rows_of(number)
    return step_leaves(number, rows, png, jpeg, near_depth(rows, number))


class TestRlds(SourceContract):
    def make_data(self, folder):
        numbers = iter(range(14))
        return dataset(folder, [[leaves(next(numbers)) for _ in range(count)] for count in (11, 3)])

    def make_source(self, root):
        layout = {
            "images": {"front": "observation.front", "side": "steps/observation/side"},
            "depths": {"near": "observation.near"},
            "numeric": {"state": "observation.state", "action": "action"},
        }
        return source(root, "rlds", layout=layout)

    def expected(self):
        def one(number):
            found = episode_arrays(number, rows_of(number))
            return Expected(
                numeric={"state": found["state"], "action": found["action"]},
                pictures={"front": found["cam_0"], "side": found["cam_1"]},
                depth={"near": near_depth(rows_of(number), number).astype(np.float32) / np.float32(1000)},
                tolerance=4.0,
                instruction=f"do {number}",
            )

        names = [f"train-00000#{place}" for place in range(11)] + [f"train-00001#{place}" for place in range(3)]
        return {name: one(number) for number, name in enumerate(names)}

    def change(self, root, source_id):
        changed = leaves(1)
        changed["steps/action"][5] += 1.0
        records = [leaves(number) for number in range(11)]
        records[1] = changed
        path = root / "robot-train.tfrecord-00000-of-00002"
        path.write_bytes(b"".join(framed(example(one)) for one in records))


def test_everything_is_found_without_a_layout(tmp_path):
    with only_episode(dataset(tmp_path, [[leaves(3)]]), "rlds") as opened:
        assert {(spec.kind, spec.name, spec.source) for spec in opened.streams} == {
            ("rgb", "front", "observation.front"),
            ("rgb", "side", "observation.side"),
            ("depth", "near", "observation.near"),
            ("numeric", "state", "observation.state"),
            ("numeric", "action", "action"),
            ("numeric", "reward", "reward"),
            ("numeric", "is_first", "is_first"),
            ("numeric", "is_last", "is_last"),
        }
        assert stream(opened, "action").role == "action"
        assert stream(opened, "side").encoding == "jpeg"
        assert [frame.data for frame in frames(opened, "side")] == leaves(3)["steps/observation/side"]
        assert opened.facts.attributes["episode_metadata"] == {"file_path": "/raw/3", "success": True}
        assert opened.facts.attributes["last_action"].startswith("undefined")


def test_rows_are_paired_as_they_are_stored_and_the_last_action_is_flagged(tmp_path):
    rows = 5
    record = {
        **flags(rows),
        "steps/observation/t": [float(step) for step in range(rows)],
        "steps/action": [*(10.0 * step for step in range(rows - 1)), 999.0],
    }
    step = {**FLAGS, "observation": features(t=tensor("float32")), "action": tensor("float32")}
    home = dataset(tmp_path, [[record]], step)
    with only_episode(home, "rlds") as opened:
        seen = opened.numeric(stream(opened, "t"))[:, 0]
        done = opened.numeric(stream(opened, "action"))[:, 0]
        np.testing.assert_array_equal(done[:-1], 10 * seen[:-1])
        assert done[-1] == 999
        assert "is_last" in opened.facts.attributes["last_action"]
    report = run({"dir_type": "rlds", "fps": 5}, home, tmp_path / "out")
    said = json.loads((tmp_path / "out" / report.written[0].episode_id / "metadata.json").read_text())
    assert "undefined by RLDS" in said["last_action"]


def test_a_dict_of_actions(tmp_path):
    action = {
        "world_vector": tensor("float32", 3),
        "terminate_episode": tensor("int32", 3),
        "gripper": tensor("float32", 1),
    }
    record = {
        **flags(2),
        "steps/action/world_vector": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        "steps/action/terminate_episode": [0, 1, 0, -1, 0, 2**40],
        "steps/action/gripper": [0.5, 1.0],
    }
    with only_episode(dataset(tmp_path, [[record]], {**FLAGS, "action": features(**action)}), "rlds") as opened:
        rows = {spec.source: opened.numeric(spec) for spec in opened.streams}
        np.testing.assert_array_equal(rows["action.world_vector"], [[1, 2, 3], [4, 5, 6]])
        np.testing.assert_array_equal(rows["action.terminate_episode"], [[0, 1, 0], [-1, 0, np.float32(2**40)]])
        assert {spec.role for spec in opened.streams} == {None}


def test_every_way_to_store_numbers(tmp_path):
    step = {
        **FLAGS,
        "raw": tensor("float64", 2, encoding="bytes"),
        "deflated": tensor("uint8", 2, 2, encoding="zlib"),
        "big": tensor("uint64"),
        "even": sequence(tensor("float32", 2)),
        "uneven": sequence(tensor("float32")),
        "label": {"classLabel": {"numClasses": "4"}},
        "box": {"boundingBox": {}},
        "odd": {"audio": {}},
        "absent": tensor("float32", 3),
    }
    record = {
        **flags(2),
        "steps/raw": [struct.pack("<2d", 1, 2), struct.pack("<2d", 3, 4)],
        "steps/deflated": [zlib.compress(bytes([1, 2, 3, 4])), zlib.compress(bytes([5, 6, 7, 8]))],
        "steps/big": [5, -1],
        "steps/even/ragged_flat_values": [float(value) for value in range(12)],
        "steps/even/ragged_row_lengths_0": [3, 3],
        "steps/uneven/ragged_flat_values": [1.0, 2.0, 3.0],
        "steps/uneven/ragged_row_lengths_0": [1, 2],
        "steps/label": [3, 0],
        "steps/box": [0.0, 0.25, 0.5, 1.0] * 2,
    }
    with only_episode(dataset(tmp_path, [[record]], step), "rlds") as opened:
        rows = {spec.name: opened.numeric(spec) for spec in opened.streams}
        np.testing.assert_array_equal(rows["raw"], [[1, 2], [3, 4]])
        np.testing.assert_array_equal(rows["deflated"], [[1, 2, 3, 4], [5, 6, 7, 8]])
        np.testing.assert_array_equal(rows["big"], [[5], [np.float32(2**64)]])
        np.testing.assert_array_equal(rows["even"], np.arange(12).reshape(2, 6))
        np.testing.assert_array_equal(rows["label"], [[3], [0]])
        assert rows["box"].shape == (2, 4)
        told = " ".join(opened.facts.warnings)
        assert "uneven (a sequence of 1 to 2 values a step)" in told
        assert "absent (declared, but not in the record)" in told
        assert "odd" in told


def test_texts_of_several_values_a_step(tmp_path):
    step = {
        **FLAGS,
        "language_instruction": tensor("string", 2),
        "notes": tensor("string", 2, 2),
        "action": tensor("float32", 1),
    }
    said = {"steps/language_instruction": [b"go", b"move"] * 3, "steps/notes": [b"x"] * 12, "steps/action": [0.0] * 3}
    home = dataset(tmp_path / "raw", [[{**flags(3), **said}]], step)
    with only_episode(home, "rlds") as opened:
        assert stream(opened, "action").length == 3
        assert (opened.facts.language.instruction, opened.facts.language.rephrases) == ("go", ("move",))
    home = dataset(tmp_path / "odd", [[{**flags(3), **said, "steps/notes": [b"x"] * 13}]], step)
    with pytest.raises(EpisodeError, match="notes has 13 texts, no multiple of 4"):
        only_episode(home, "rlds")


@pytest.mark.parametrize(("dtype", "kind"), [("uint8", "rgb"), ("uint16", "depth")])
def test_pictures_stored_as_plain_numbers(tmp_path, dtype, kind):
    known = episode_arrays(3, 2)["cam_0"]
    if kind == "depth":
        known = known[..., :1].astype(np.uint16) * 200
    record = {**flags(2), "steps/view": known.ravel().tolist()}
    home = dataset(tmp_path, [[record]], {**FLAGS, "view": tensor(dtype, *known.shape[1:])})
    with only_episode(home, "rlds") as opened:
        spec = stream(opened, "view")
        found = list(opened.frames(spec))
        assert spec.kind == kind
        if kind == "rgb":
            np.testing.assert_array_equal(found, known)
        else:
            np.testing.assert_array_equal(found, (known[..., 0] / 1000).astype(np.float32))


def test_what_is_said_of_a_whole_episode(tmp_path):
    metadata = {
        "pose": tensor("float32", 2, 3),
        "tags": sequence(TEXT),
        "one": sequence(tensor("int64")),
        "id": tensor("int32"),
        "long": tensor("float32", 300),
        "clip": image(96, 112, 3),
        "flags": tensor("bool", 2),
    }
    record = {
        **leaves(1),
        "episode_metadata/pose": [float(value) for value in range(6)],
        "episode_metadata/tags": [b"a", "schön".encode()],
        "episode_metadata/one": [7],
        "episode_metadata/id": [7],
        "episode_metadata/long": [0.0] * 300,
        "episode_metadata/clip": [png(episode_arrays(0, 1)["cam_0"][0])],
        "episode_metadata/flags": [1, 0],
    }
    del record["episode_metadata/file_path"], record["episode_metadata/success"]
    with only_episode(dataset(tmp_path, [[record]], metadata=metadata), "rlds") as opened:
        assert opened.facts.attributes["episode_metadata"] == {
            "pose": [[0, 1, 2], [3, 4, 5]],
            "tags": ["a", "schön"],
            "one": [7],
            "id": 7,
            "flags": [True, False],
        }
        assert any("episode_metadata/long, episode_metadata/clip" in text for text in opened.facts.warnings)


def test_pictures_of_floats(tmp_path):
    metres = np.linspace(0.5, 4, 2 * 16 * 16, dtype=np.float32).reshape(2, 16, 16)
    pictures = [png(np.ascontiguousarray(one).view(np.uint8).reshape(16, 16, 4)) for one in metres]
    step = {**FLAGS, "depth": image(16, 16, 1, dtype="float32")}
    with only_episode(dataset(tmp_path, [[{**flags(2), "steps/depth": pictures}]], step), "rlds") as opened:
        np.testing.assert_array_equal(np.stack(frames(opened, "depth")), metres)


def test_cameras_that_were_not_there(tmp_path):
    known = episode_arrays(0, 3)
    step = {**FLAGS, "a": image(96, 112, 3, form="jpeg"), "b": image(96, 112, 3), "c": image(96, 112, 3)}
    pictures = [jpeg(picture) for picture in known["cam_0"]]
    pngs = [png(picture) for picture in known["cam_1"]]
    record = {**flags(3), "steps/a": [pictures[0], b"", pictures[2]], "steps/b": [b""] * 3, "steps/c": [b"", *pngs[1:]]}
    with only_episode(dataset(tmp_path, [[record]], step), "rlds") as opened:
        assert [spec.name for spec in opened.streams if spec.kind == "rgb"] == ["a", "c"]
        shown = frames(opened, "a")
        assert identities([shown[0], shown[2]]) == [(0, 0, 0), (0, 0, 2)]
        assert decode_image(shown[1]).max() == 0
        assert decode_image(frames(opened, "c")[0]).max() == 0
        assert opened.facts.attributes["missing_frames"] == {"a": [1], "c": [0]}
        told = " ".join(opened.facts.warnings)
        assert "1 of 3 steps have no picture" in told
        assert "b: left out: none of its steps has a picture" in told


@pytest.mark.parametrize(
    ("bad", "found"),
    [
        (b"not a picture", "13 bytes: 6e 6f 74"),
        (b"GIF89a" + bytes(20), "but GIF"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "but WebP"),
        (bytes(96 * 112 * 3), "32256 bytes, nothing but zeros"),
    ],
)
@pytest.mark.parametrize("step", [0, 2])
def test_a_camera_whose_bytes_are_no_picture_fails_its_episode_unless_the_layout_leaves_it_out(
    tmp_path, bad, found, step
):
    good, broken = leaves(0), leaves(1)
    broken["steps/observation/front"][step] = bad
    home = dataset(tmp_path / "raw", [[good, broken, leaves(2)]])
    report = run({"dir_type": "rlds", "fps": 5}, home, tmp_path / "out", engine="inline")
    assert [outcome.source_id for outcome in report.written] == ["train-00000#0", "train-00000#2"]
    (failed,) = report.failed
    assert failed.source_id == "train-00000#1"
    assert f"observation.front, step {step}: no JPEG or PNG picture ({found}" in failed.reason
    layout = {"images": {"side": "observation.side"}, "numeric": {"action": "action"}}
    keys = {"dir_type": "rlds", "fps": 5, "layout": layout}
    report = run(keys, home, tmp_path / "without", engine="inline")
    assert len(report.written) == 3


@pytest.mark.parametrize(
    ("front", "found"),
    [
        (1, "front: numbers where pictures are declared"),
        (b"\x89PNG\r\n\x1a\n", "front, step 0: a PNG of 8 bytes has no header"),
        (b"\xff\xd8\xff\xd9", "front, step 0: unreadable JPEG header"),
    ],
)
def test_the_header_of_a_picture_is_the_episodes_trouble_too(tmp_path, front, found):
    home = dataset(tmp_path, [[leaves(1) | {"steps/observation/front": [front] * rows_of(1)}]])
    with pytest.raises(EpisodeError, match=found):
        only_episode(home, "rlds")
    layout = {"images": {"side": "observation.side"}}
    with only_episode(home, "rlds", layout=layout) as opened:
        assert len(frames(opened, "side")) == rows_of(1)


def test_sizes_that_the_features_get_wrong_are_told(tmp_path):
    step = {**FLAGS, "a": image(64, 64, 3)}
    record = {**flags(2), "steps/a": [png(picture) for picture in episode_arrays(0, 2)["cam_0"]]}
    with only_episode(dataset(tmp_path, [[record]], step), "rlds") as opened:
        assert stream(opened, "a").shape == (96, 112, 3)
        assert identities(frames(opened, "a")) == [(0, 0, 0), (0, 0, 1)]
        assert any("(96, 112) pixels, features.json says (64, 64)" in text for text in opened.facts.warnings)


@pytest.mark.parametrize(
    ("step", "said", "instruction", "rephrases"),
    [
        ({"language_instruction": TEXT}, {"language_instruction": [b"go", b"go", b"go"]}, "go", ()),
        (
            dict.fromkeys(("language_instruction", "language_instruction_2", "language_instruction_3"), TEXT),
            {
                "language_instruction": [b"go"] * 3,
                "language_instruction_2": [b"move"] * 3,
                "language_instruction_3": [b""] * 3,
            },
            "go",
            ("move",),
        ),
        (
            {"observation": features(natural_language_instruction=TEXT)},
            {"observation/natural_language_instruction": ["schön".encode()] * 3},
            "schön",
            (),
        ),
        ({"language_instruction": TEXT}, {"language_instruction": [b"", b"", b""]}, None, ()),
    ],
)
def test_language(tmp_path, step, said, instruction, rephrases):
    record = {**flags(3), **{f"steps/{name}": values for name, values in said.items()}}
    record["steps/action"] = [1.0, 2.0, 3.0]
    home = dataset(tmp_path, [[record]], {**FLAGS, "action": tensor("float32"), **step})
    with only_episode(home, "rlds") as opened:
        found = opened.facts.language
        assert (found.instruction if found else None) == instruction
        assert (found.rephrases if found else ()) == rephrases


def test_language_that_changes_within_an_episode(tmp_path):
    record = {**flags(4), "steps/language_instruction": [b"a", b"a", b"b", b"b"]}
    home = dataset(tmp_path, [[record]], {**FLAGS, "language_instruction": TEXT})
    with only_episode(home, "rlds", fps=10) as opened:
        assert opened.facts.language.segments == ((0.0, 0.2, "a"), (0.2, 0.3, "b"))


def test_a_missing_shard_is_told_and_the_others_are_read(tmp_path):
    home = dataset(tmp_path, [[leaves(0), leaves(1)], [leaves(2)], [leaves(3), leaves(4)]])
    (home / "robot-train.tfrecord-00002-of-00003").unlink()
    found = source(home, "rlds")
    refs = found.episodes()
    assert [ref.source_id for ref in refs] == ["train-00000#0", "train-00000#1", "train-00001#0", "train-00002"]
    assert any("00002-of-00003: the shard, 2 episodes, is missing" in text for text in found.warnings)
    with pytest.raises(EpisodeError, match="the shard, 2 episodes, is missing"):
        found.open(refs[3])
    with found.open(refs[2]) as opened:
        assert identities(frames(opened, "front"))[0] == (0, 2, 0)


def test_a_shard_in_the_middle_is_missed_without_info_too(tmp_path):
    home = dataset(tmp_path, [[leaves(0)], [leaves(1)], [leaves(2)]], info=False)
    (home / "robot-train.tfrecord-00001-of-00003").unlink()
    found = source(home, "rlds")
    assert [ref.source_id for ref in found.episodes()] == ["train-00000#0", "train-00001", "train-00002#0"]


@pytest.mark.parametrize("cut", [1, 5, 1000])
def test_a_cut_shard_keeps_its_whole_records(tmp_path, cut):
    home = dataset(tmp_path, [[leaves(0), leaves(1), leaves(2)]])
    path = home / "robot-train.tfrecord-00000-of-00001"
    path.write_bytes(path.read_bytes()[:-cut])
    found = source(home, "rlds")
    refs = found.episodes()
    assert len(refs) == 3
    assert any("ends after 2 of 3 records" in text for text in found.warnings)
    with pytest.raises(EpisodeError, match="ends after 2 of 3 records"):
        found.open(refs[2])
    with found.open(refs[1]) as opened:
        assert len(frames(opened, "front")) == rows_of(1)


def test_a_flipped_byte_fails_its_record_alone(tmp_path):
    home = dataset(tmp_path, [[leaves(0), leaves(1)]])
    path = home / "robot-train.tfrecord-00000-of-00001"
    data = bytearray(path.read_bytes())
    data[2000] ^= 4
    path.write_bytes(data)
    found = source(home, "rlds")
    refs = found.episodes()
    with pytest.raises(EpisodeError, match="check sum"):
        found.open(refs[0])
    with found.open(refs[1]) as opened:
        assert len(frames(opened, "side")) == rows_of(1)


def test_several_splits(tmp_path):
    dataset(tmp_path, [[leaves(0)]])
    home = dataset(tmp_path, [[leaves(1)]], split="val-unseen")
    assert [ref.source_id for ref in source(home, "rlds").episodes()] == ["train-00000#0", "val-unseen-00000#0"]


def test_files_named_by_a_template(tmp_path):
    home = dataset(tmp_path, [[leaves(0)], [leaves(1)], [leaves(2)]])
    info = json.loads((home / "dataset_info.json").read_text())
    info["splits"][0]["filepathTemplate"] = "{SPLIT}_{SHARD_INDEX}.{FILEFORMAT}"
    (home / "dataset_info.json").write_text(json.dumps(info))
    for number in (0, 2):
        (home / f"robot-train.tfrecord-{number:05d}-of-00003").rename(home / f"train_{number:05d}.tfrecord")
    (home / "robot-train.tfrecord-00001-of-00003").rename(tmp_path / "elsewhere")
    refs = source(home, "rlds").episodes()
    assert [ref.source_id for ref in refs] == ["train-00000#0", "train-00001", "train-00002#0"]
    info["splits"][0]["filepathTemplate"] = "../../{SPLIT}_{SHARD_INDEX}.{FILEFORMAT}"
    (home / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(SourceError, match="download is incomplete"):
        source(home, "rlds").episodes()


def test_a_name_that_promises_millions_of_shards(tmp_path):
    home = dataset(tmp_path, [[leaves(0)]], info=False)
    (home / "robot-train.tfrecord-00000-of-00001").rename(home / "robot-train.tfrecord-00000-of-99999999")
    with pytest.raises(SourceError, match="99999999 shards of train"):
        source(home, "rlds").episodes()


def test_versions_below_the_input(tmp_path):
    dataset(tmp_path, [[leaves(0)]])
    assert len(source(tmp_path, "rlds").episodes()) == 1
    dataset(tmp_path, [[leaves(0)]], name="other")
    with pytest.raises(SourceError, match=r"several datasets or versions \(other/1\.0\.0, robot/1\.0\.0\)"):
        source(tmp_path, "rlds").episodes()


def test_a_named_config_below_the_input(tmp_path):
    home = dataset(tmp_path, [[leaves(2)]])
    below = tmp_path / "robot" / "high" / "1.0.0"
    below.parent.mkdir()
    home.rename(below)
    with only_episode(tmp_path, "rlds") as opened:
        assert identities(frames(opened, "front"))[0] == (0, 2, 0)


def test_a_compressed_file_is_called_one(tmp_path):
    home = dataset(tmp_path, [[leaves(0)]])
    path = home / "robot-train.tfrecord-00000-of-00001"
    path.write_bytes(gzip.compress(path.read_bytes()))
    found = source(home, "rlds")
    with pytest.raises(EpisodeError, match="compressed with gzip; decompress it"):
        found.open(found.episodes()[0])


def test_datasets_that_are_no_episodes(tmp_path):
    home = dataset(tmp_path, [[leaves(0)]])
    (home / "features.json").write_text(json.dumps(features(image=image(8, 8, 3))))
    with pytest.raises(SourceError, match="no 'steps', but: image"):
        source(home, "rlds").episodes()
    (home / "features.json").unlink()
    with pytest.raises(SourceError, match=r"no features\.json"):
        source(home, "rlds").episodes()


def test_other_file_formats_are_named(tmp_path):
    home = dataset(tmp_path, [[leaves(0)]])
    info = json.loads((home / "dataset_info.json").read_text()) | {"fileFormat": "array_record"}
    (home / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(SourceError, match="array_record"):
        source(home, "rlds").episodes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps/action": [1.0] * 7}, "no multiple of 4"),
        ({"steps/action": [1.0] * 8}, "action has 2 steps, is_first has 5|is_first has 5|has 2 steps"),
        ({"steps/observation/front": [b"x"]}, "front has 1 steps"),
        ({"steps/observation/front": [b"abc"] * 5}, "no JPEG or PNG|neither|holds"),
        ({"steps/action": [b"abcd"] * 5}, "bytes where numbers are declared"),
    ],
)
def test_records_that_contradict_their_features(tmp_path, change, message):
    home = dataset(tmp_path, [[leaves(1) | change]])
    layout = {"images": {"front": "observation.front"}, "numeric": {"action": "action"}}
    with pytest.raises((EpisodeError, SourceError), match=message), only_episode(home, "rlds", layout=layout) as opened:
        frames(opened, "front")


@pytest.mark.parametrize(("flags", "where"), [([0, 1, 0, 0, 1], "steps [1, 4]"), ([0, 0, 0, 0, 0], "no step")])
def test_flags_that_contradict_the_order_are_told(tmp_path, flags, where):
    record = leaves(1) | {"steps/is_last": flags}
    with only_episode(dataset(tmp_path, [[record]]), "rlds") as opened:
        assert any(
            f"is_last is set on {where}; wanted on the last step alone, 4" in text for text in opened.facts.warnings
        )


def test_what_all_episodes_have_in_common_is_said_once(tmp_path, capsys):
    for number in range(3):
        dataset(tmp_path / "raw", [[leaves(number) | {"steps/is_last": [0] * rows_of(number)}]], split=f"part{number}")
    settings = write_json(tmp_path / "rlds.json", {"dir_type": "rlds", "fps": 5})
    call = ["ingest", "--config", str(settings), "--input", str(tmp_path / "raw"), "--output", str(tmp_path / "out")]
    assert main([*call, "--engine", "inline", "--quiet"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "is_last" in line]
    wanted = "is_last is set on no step; wanted on the last step alone, 3"
    assert said == [f"warning: 3 episodes from episode_000000 on, the first: {wanted}"]


def test_a_sequence_example_is_refused_by_name(tmp_path):
    with pytest.raises(EpisodeError, match="SequenceExample"):
        parse_example(b"\x0a\x00\x12\x00", "here")


def test_numbers_of_every_size_are_read_as_protobuf_reads_them():
    values = [0, 1, -1, 127, 128, 2**31, -(2**31), 2**63 - 1, -(2**63), *(1 << shift for shift in range(63))]
    found = parse_example(example({"a": values, "b": [1.5, -2.0], "c": [b"", b"x" * 300], "": []}), "here")
    np.testing.assert_array_equal(found["a"], values)
    np.testing.assert_array_equal(found["b"], [1.5, -2])
    assert found["c"] == [b"", b"x" * 300]


@pytest.mark.parametrize("value", [1, 300, -1])
def test_more_integers_than_are_worked_on_at_once(value, monkeypatch):
    monkeypatch.setattr(rlds_records, "_BLOCK", 64)
    values = [value, 5, value, value, 2**40] * 101
    np.testing.assert_array_equal(parse_example(example({"a": values}), "here")["a"], values)
    values = [1] * 63 + [-1]
    np.testing.assert_array_equal(parse_example(example({"a": values}), "here")["a"], values)


def test_more_integers_than_memory_holds_are_refused(monkeypatch):
    """A byte each in the file, eight in memory."""
    monkeypatch.setattr("knonik_assets.sources.arrays.MOST_BYTES", 1000)
    assert len(parse_example(example({"a": [1] * 125}), "here")["a"]) == 125
    with pytest.raises(EpisodeError, match="here: 126 integers of one feature: 1008 bytes would have to be held"):
        parse_example(example({"a": [1] * 126}), "here")


def test_unpacked_numbers():
    feature = b"\x1a\x04\x08\x05\x08\x07"  # Int64List without packing
    entry = b"\x0a\x01a\x12" + bytes([len(feature)]) + feature
    features_ = b"\x0a" + bytes([len(entry)]) + entry
    found = parse_example(b"\x0a" + bytes([len(features_)]) + features_, "here")
    np.testing.assert_array_equal(found["a"], [5, 7])


def test_it_is_recognised(tmp_path):
    dataset(tmp_path, [[leaves(0), leaves(1)]])
    found = detect(tmp_path)
    assert (found.dir_type, found.episodes, found.language) == ("rlds", 2, "do 0")
    assert found.config["layout"]["numeric"]["state"] == "observation.state"


def test_real_dataset(real_data):
    root = real_data / "rlds/octo_bridge_debug"
    found = source(root, "rlds")
    refs = found.episodes()
    assert [ref.source_id for ref in refs] == [f"{split}-00000#{n}" for split in ("train", "val") for n in range(25)]
    data = (root / "bridge_dataset/1.0.0/bridge_dataset-train.tfrecord-00000-of-00001").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    known = Example.FromString(data[12 : 12 + length]).features.feature
    with found.open(refs[0]) as opened:
        assert [spec.name for spec in opened.streams if spec.kind == "rgb"] == [
            "image_1",
            "image_0",
            "image_2",
            "image_3",
        ]
        assert {spec.length for spec in opened.streams} == {10}
        action = np.array(known["steps/action"].float_list.value, np.float32).reshape(10, 7)
        np.testing.assert_array_equal(opened.numeric(stream(opened, "action")), action)
        assert [frame.data for frame in frames(opened, "image_0")] == list(
            known["steps/observation/image_0"].bytes_list.value
        )
        assert opened.facts.language.instruction == known["steps/language_instruction"].bytes_list.value[0].decode()
    for ref in refs:
        with found.open(ref) as opened:
            assert {frame.format for frame in frames(opened, "image_0")} == {"jpeg"}
