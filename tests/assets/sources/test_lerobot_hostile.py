"""LeRobot datasets that somebody made to hurt, or that a broken tool wrote: a typed error, or what can be read."""

import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from knonik_assets.sources.base_contract import as_array
from knonik_loader.errors import EpisodeError, SourceError
from tests.assets.sources.support import V2, V3, png, source
from tests.support.limits import little_memory
from tests.support.stamps import read_stamp

LENGTHS = [5, 6, 7]
CLASSES = {"lerobot_v2": V2, "lerobot_v3": V3}


def make(folder, reader="lerobot_v2", cameras=("left",)):
    if reader == "lerobot_v2":
        return V2(folder / "set", LENGTHS, cameras)
    return V3(folder / "set", LENGTHS, {camera: [3] for camera in cameras}, [1, 1, 1])


def read(root, reader):
    """(episodes whose every frame is their own, {episode: error}, everything that is said)."""
    with little_memory():
        found = source(root, reader)
        refs = found.episodes()
        good, errors, said = [], {}, list(found.warnings)
        for ref in refs:
            try:
                with found.open(ref) as episode:
                    for spec in episode.streams:
                        if spec.kind == "numeric":
                            episode.numeric(spec)
                        else:
                            shown = [read_stamp(as_array(one)) for one in episode.frames(spec)]
                            assert shown == [(0, int(ref.source_id), row) for row in range(spec.length)]
                    said += episode.facts.warnings
            except EpisodeError as error:
                errors[ref.source_id] = str(error)
            else:
                good.append(ref.source_id)
    return good, errors, " | ".join(said)


@pytest.mark.parametrize("reader", CLASSES)
@pytest.mark.parametrize(
    "template",
    [
        "data/{%s:0999999999d}.parquet",
        "data/{%s:.999999999f}.parquet",
        "data/{%s:{%s}d}.parquet",
        "data/{%s.__class__}.parquet",
        "data/{%s!r}.parquet",
        "data/{0}/{%s}.parquet",
        "data/\0{%s}.parquet",
    ],
)
def test_a_template_that_is_more_than_a_name_is_not_used(tmp_path, reader, template):
    dataset = make(tmp_path, reader)
    field = "episode_index" if reader == "lerobot_v2" else "file_index"
    dataset.info["data_path"] = template.replace("%s", field)
    good, errors, said = read(dataset.write(), reader)
    assert (good, errors) == (["0", "1", "2"], {})
    assert "template" in said


@pytest.mark.parametrize("reader", CLASSES)
@pytest.mark.parametrize("fps", [1e300, 1e-300, -30, 0, 10**400, "thirty", [30, 31], True])
def test_rates_that_make_no_sense_are_no_rates(tmp_path, reader, fps):
    dataset = make(tmp_path, reader)
    dataset.info["fps"] = fps
    with source(dataset.write(), reader).open(source(dataset.root, reader).episodes()[0]) as episode:
        assert {spec.fps for spec in episode.streams} == {None}
    assert read(dataset.root, reader)[:2] == (["0", "1", "2"], {})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("chunks_size", -1),
        ("chunks_size", 10**400),
        ("total_frames", 10**18),
        ("features", [1]),
        ("features", {"observation.state": 5, "action": {"dtype": "float32", "names": {"a": 10**400, "b": True}}}),
        ("codebase_version", 2),
    ],
)
def test_absurd_values_in_info_cost_no_frame(tmp_path, key, value):
    dataset = make(tmp_path)
    dataset.info[key] = value
    assert read(dataset.write(), "lerobot_v2")[:2] == (["0", "1", "2"], {})


def with_column(dataset, name, values, episode=1):
    def rows(number):
        columns = type(dataset).rows(dataset, number)
        if number == episode:
            columns[name] = values(len(columns["frame_index"]))
        return columns

    return dataset.write(rows)


TEXT = (lambda n: pa.array(["a"] * n), "holds string; wanted numbers")
EMPTY = (pa.nulls, "empty|holds null")


@pytest.mark.parametrize("reader", CLASSES)
@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("frame_index", *TEXT),
        ("frame_index", *EMPTY),
        ("frame_index", lambda n: pa.array([None] * n, pa.int64()), "holds nan in row 0"),
        ("frame_index", lambda n: pa.array([np.nan] * n), "holds nan in row 0"),
        ("frame_index", lambda n: pa.array(np.arange(n) + 0.5), r"holds 0\.5 in row 0"),
        ("frame_index", lambda n: pa.array([2**64 - 1 - i for i in range(n)], pa.uint64()), "wanted whole numbers"),
        ("frame_index", lambda n: pa.array([[0, 1]] * n), "2 numbers a row"),
        ("frame_index", lambda n: pa.array([0] * n), "more than one row"),
        ("episode_index", *TEXT),
        ("episode_index", lambda n: pa.array([np.nan] * n), "wanted whole numbers"),
        ("timestamp", *TEXT),
        ("timestamp", lambda n: pa.array(range(n), pa.timestamp("ns")), "holds timestamp"),
        ("task_index", *TEXT),
        ("action", lambda n: pa.array([[1.0] * (i + 1) for i in range(n)]), "between 1 and"),
    ],
)
def test_columns_of_another_type_cost_their_episode_alone(tmp_path, reader, name, values, message):
    root = with_column(make(tmp_path, reader), name, values)
    good, errors, _ = read(root, reader)
    assert good == ["0", "2"]
    assert list(errors) == ["1"]
    assert re.search(message, errors["1"])


@pytest.mark.parametrize("reader", CLASSES)
@pytest.mark.parametrize(
    "values",
    [
        lambda n: pa.array([2**62] * n),
        lambda n: pa.array([-1] * n),
        lambda n: pa.array([99] * n),
        lambda n: pa.array([np.inf] * n),
        lambda n: pa.array([1e300] * n),
        lambda n: pa.array([None] * n, pa.int64()),
    ],
)
def test_tasks_that_are_not_in_the_list_leave_no_instruction(tmp_path, reader, values):
    root = with_column(make(tmp_path, reader), "task_index", values)
    assert read(root, reader)[:2] == (["0", "1", "2"], {})
    found = source(root, reader)
    with found.open(found.episodes()[0]) as episode:
        assert episode.facts.language.instruction == "task 0"
    with found.open(found.episodes()[1]) as episode:  # the list of episodes has its text all the same
        assert episode.facts.language.instruction == "task 1"


@pytest.mark.parametrize(
    "values", [lambda n: pa.array([1e300 * i for i in range(n)]), lambda n: pa.array([0.0] * n), pa.nulls]
)
def test_times_that_no_frame_can_have(tmp_path, values):
    """Each episode has a video of its own with a frame a row, so their order is believed where times make no sense."""
    good, errors, _ = read(with_column(make(tmp_path), "timestamp", values), "lerobot_v2")
    assert set(good) | set(errors) == {"0", "1", "2"}
    assert {"0", "2"} <= set(good)


def test_numbers_beyond_float32_are_told(tmp_path):
    values = lambda n: pa.array([[1e300] * 4] * n, pa.list_(pa.float64(), 4))  # noqa: E731
    good, _, said = read(with_column(make(tmp_path), "action", values), "lerobot_v2")
    assert good == ["0", "1", "2"]
    assert "24 values beyond what float32 holds become infinite" in said


@pytest.mark.parametrize("reader", CLASSES)
def test_a_column_whose_type_changed_is_told(tmp_path, reader):
    _, _, said = read(with_column(make(tmp_path, reader), "action", lambda n: pa.array(["a"] * n)), reader)
    assert "left out, as they are no numbers: action" in said


def equal_rows(path, columns, groups, rows):
    """A file of groups of equal rows: a few bytes for thousands of millions."""
    arrays = {
        name: pa.array(np.zeros(rows, np.float32 if pa.types.is_floating(values.type) else np.int64))
        for name, values in columns.items()
        if not pa.types.is_fixed_size_list(values.type)
    }
    arrays["episode_index"] = pa.array(np.ones(rows, np.int64))
    table = pa.table(arrays)
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for _ in range(groups):
            writer.write_table(table)


@pytest.mark.parametrize("reader", CLASSES)
def test_rows_that_would_not_fit_memory_are_refused(tmp_path, reader):
    dataset = make(tmp_path, reader)
    dataset.write()
    equal_rows(dataset.data_path(1), dataset.rows(1), 20, 2_000_000)
    assert dataset.data_path(1).stat().st_size < 1 << 20
    good, errors, _ = read(dataset.root, reader)
    assert good == ["0", "2"]
    assert "bytes would have to be held at once" in errors["1"]


def test_pictures_that_would_not_fit_memory_together_are_read_one_by_one(tmp_path):
    dataset = make(tmp_path, cameras=())
    dataset.info["features"]["pic"] = {"dtype": "image", "shape": [96, 112, 3]}
    picture = png(dataset.episodes[1]["cam_0"][0])

    def rows(number):
        padded = picture + bytes(80 << 20) if number == 1 else picture
        kind = pa.struct({"bytes": pa.large_binary(), "path": pa.string()})
        count = LENGTHS[number]
        return {**dataset.rows(number), "pic": pa.array([{"bytes": padded, "path": None}] * count, kind)}

    dataset.write(rows)
    with little_memory(700 << 20):
        found = source(dataset.root, "lerobot_v2")
        with found.open(found.episodes()[1]) as episode:
            (spec,) = [spec for spec in episode.streams if spec.kind == "rgb"]
            assert [read_stamp(as_array(one)) for one in episode.frames(spec)] == [(0, 1, 0)] * LENGTHS[1]


@pytest.mark.parametrize("reader", CLASSES)
@pytest.mark.parametrize("what", ["data", "video"])
def test_links_out_of_the_dataset_cost_their_episode(tmp_path, reader, what):
    dataset = make(tmp_path, reader)
    dataset.write()
    path = {
        "data": lambda: dataset.data_path(1),
        "video": lambda: dataset.video_path("left", 1 if reader == "lerobot_v2" else 0),
    }[what]()
    (tmp_path / "elsewhere").mkdir()
    shutil.move(path, tmp_path / "elsewhere" / path.name)
    path.symlink_to(tmp_path / "elsewhere" / path.name)
    good, errors, _ = read(dataset.root, reader)
    assert good == ([] if what == "video" and reader == "lerobot_v3" else ["0", "2"])
    assert "is a link that leads out of" in errors["1"]


@pytest.mark.parametrize("reader", CLASSES)
@pytest.mark.parametrize("name", ["meta", "meta/info.json"])
def test_links_out_of_the_metadata_are_refused(tmp_path, reader, name):
    dataset = make(tmp_path, reader)
    dataset.write()
    shutil.move(dataset.root / name, tmp_path / "elsewhere")
    (dataset.root / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SourceError, match="is a link that leads out of"):
        read(dataset.root, reader)


@pytest.mark.parametrize("link", ["videos", "data"])
def test_folders_that_lie_elsewhere_are_refused(tmp_path, link):
    dataset = make(tmp_path)
    dataset.write()
    shutil.move(dataset.root / link, tmp_path / "elsewhere")
    (dataset.root / link).symlink_to(tmp_path / "elsewhere")
    good, errors, _ = read(dataset.root, "lerobot_v2")
    assert good == []
    assert all("is a link that leads out of" in reason for reason in errors.values())


def named_pictures(dataset, path, key="pic"):
    dataset.info["features"][key] = {"dtype": "image", "shape": [96, 112, 3]}
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})

    def rows(number):
        return {**dataset.rows(number), key: pa.array([{"bytes": None, "path": path}] * LENGTHS[number], kind)}

    return dataset.write(rows)


@pytest.mark.parametrize(
    ("path", "key", "message"),
    [
        ("/etc/passwd", "pic", "lies outside the dataset"),
        ("../x.png", "pic", "lies outside the dataset"),
        ("x.png", "../../x", "leads out of"),
        ("images/x.png", "pic", "is a link that leads out of"),
        ("a\0b", "pic", "cannot be read"),
        ("a" * 5000, "pic", "cannot be read|too long"),
        ("meta", "pic", "cannot be read"),
    ],
)
def test_pictures_outside_of_the_dataset_are_never_read(tmp_path, path, key, message):
    dataset = make(tmp_path, cameras=())
    root = named_pictures(dataset, path, key)
    (tmp_path / "x.png").write_bytes(png(dataset.episodes[0]["cam_0"][0]))
    (root / "images").mkdir()
    (root / "images" / "x.png").symlink_to(tmp_path / "x.png")
    good, errors, _ = read(root, "lerobot_v2")
    assert not good
    assert re.search(message, errors["0"])


@pytest.mark.parametrize("line", ["[1]", '"a"', "[" * 100_000, '{"episode_index": 1e300}', '{"episode_index": "x"}'])
@pytest.mark.parametrize("file", ["episodes.jsonl", "tasks.jsonl"])
def test_lines_that_say_nothing_are_passed_over(tmp_path, file, line):
    dataset = make(tmp_path)
    path = dataset.write() / "meta" / file
    path.write_text(path.read_text() + line + "\n")
    assert read(dataset.root, "lerobot_v2")[:2] == (["0", "1", "2"], {})


def test_metadata_nested_too_deep_is_refused(tmp_path):
    dataset = make(tmp_path)
    (dataset.write() / "meta" / "info.json").write_text("[" * 100_000)
    with pytest.raises(SourceError, match="unreadable"):
        read(dataset.root, "lerobot_v2")


def test_an_episode_that_only_the_list_has_is_missing(tmp_path):
    dataset = make(tmp_path)
    dataset.hints.append({"episode_index": 10**18, "length": 10**18, "tasks": []})
    good, errors, _ = read(dataset.write(), "lerobot_v2")
    assert good == ["0", "1", "2"]
    assert "is missing; a partial download?" in errors[str(10**18)]


@pytest.mark.parametrize("column", ["data/file_index", "videos/observation.images.left/file_index"])
def test_places_of_files_that_cannot_be(tmp_path, column):
    dataset = make(tmp_path, "lerobot_v3")
    dataset.meta[1][column] = 10**18
    assert read(dataset.write(), "lerobot_v3")[:2] == (["0", "1", "2"], {})


@pytest.mark.parametrize("value", [1e300, -1e300, float("nan"), float("inf")])
@pytest.mark.parametrize("column", ["from_timestamp", "to_timestamp"])
def test_times_in_a_video_that_cannot_be(tmp_path, column, value):
    dataset = make(tmp_path, "lerobot_v3")
    dataset.cell(1, "left", column, value)
    assert read(dataset.write(), "lerobot_v3")[:2] == (["0", "1", "2"], {})


def test_info_is_read_as_json_alone(tmp_path):
    dataset = make(tmp_path)
    (dataset.write() / "meta" / "info.json").write_bytes(b"\xff\xfe" + json.dumps(dataset.info).encode())
    with pytest.raises(SourceError, match="unreadable"):
        read(dataset.root, "lerobot_v2")
