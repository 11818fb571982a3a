"""LeRobot datasets whose recorder lost power: parquet files without their footer cost no episode but their own."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from knonik.ingest import run
from knonik_assets.episodes.reader import EpisodeReader
from knonik_loader.errors import SourceError
from tests.assets.sources.support import V2, V3
from tests.support.road import knonik, write_json
from tests.support.stamps import read_stamp

LENGTHS = [5, 7, 4, 6]
KEYS = {"preset": {"rgb": {"codec": "jpeg", "quality": 95}}}
CUTS = {"footer": lambda data: data[:-8], "half": lambda data: data[: len(data) // 2], "empty": lambda data: b""}


@pytest.fixture(params=CUTS)
def cut(request):
    return lambda path: path.write_bytes(CUTS[request.param](path.read_bytes()))


@pytest.fixture
def three(tmp_path):
    """Two data files of two episodes each; videos roll elsewhere."""
    dataset = V3(tmp_path / "three", LENGTHS, {"left": [3, 1]}, [2, 2])
    dataset.write()
    return dataset


@pytest.fixture
def two(tmp_path):
    dataset = V2(tmp_path / "two", LENGTHS, ["left"])
    dataset.write()
    return dataset


def ingested(raw, out, family):
    report = run({"dir_type": family, **KEYS}, raw, out, engine="inline")
    for one in report.written:
        reader = EpisodeReader(out / one.episode_id)
        number = int(reader.metadata.source_id)
        assert one.frames == LENGTHS[number]
        assert [read_stamp(picture) for picture in reader.rgb("left")] == [(0, number, t) for t in range(one.frames)]
        assert reader.numeric("state")[:, 1].tolist() == list(range(one.frames))
        assert reader.language().instruction == f"task {number % 2}"
    return report


def numbers(outcomes):
    return [int(one.source_id) for one in outcomes]


def test_a_data_file_of_version_3(three, cut, tmp_path):
    cut(three.data_path(1))
    report = ingested(three.root, tmp_path / "out", "lerobot_v3")
    assert (numbers(report.written), numbers(report.failed)) == ([0, 1], [2, 3])
    assert all("data/chunk-000/file-001.parquet" in one.reason for one in report.failed)
    told = json.loads((tmp_path / "out" / "ingest_report.json").read_text())
    assert {one["source_id"]: one["status"] for one in told["episodes"]} == {
        "0": "written",
        "1": "written",
        "2": "failed",
        "3": "failed",
    }


def test_an_episode_of_which_a_part_lies_in_the_cut_file(three, cut, tmp_path):
    """What is left of it is no shorter episode."""
    first, second = (pq.read_table(three.data_path(file)) for file in (0, 1))
    pq.write_table(first.slice(0, 9), three.data_path(0))
    pq.write_table(pa.concat_tables([first.slice(9), second]), three.data_path(1))
    assert numbers(ingested(three.root, tmp_path / "whole", "lerobot_v3").written) == [0, 1, 2, 3]
    cut(three.data_path(1))
    report = ingested(three.root, tmp_path / "out", "lerobot_v3")
    assert (numbers(report.written), numbers(report.failed)) == ([0], [1, 2, 3])
    assert "4 of its 7 rows are readable" in report.failed[0].reason


def test_it_goes_on_when_the_file_is_whole_again(three, cut, tmp_path):
    whole = three.data_path(1).read_bytes()
    cut(three.data_path(1))
    ingested(three.root, tmp_path / "out", "lerobot_v3")
    three.data_path(1).write_bytes(whole)
    report = ingested(three.root, tmp_path / "out", "lerobot_v3")
    assert (numbers(report.written), numbers(report.skipped), report.failed) == ([2, 3], [0, 1], [])
    assert [one.episode_id for one in report.written] == ["episode_000002", "episode_000003"]


def test_the_metadata_of_version_3(three, cut, tmp_path):
    """Everything that it says can be found without it."""
    cut(three.root / "meta/episodes/chunk-000/file-000.parquet")
    report = ingested(three.root, tmp_path / "out", "lerobot_v3")
    assert (numbers(report.written), report.failed) == ([0, 1, 2, 3], [])
    assert any("meta/episodes/chunk-000/file-000.parquet" in text for text in report.warnings)


def test_one_of_several_files_of_metadata(three, cut, tmp_path):
    """As after a second recording session whose last file was not closed."""
    later = three.root / "meta/episodes/chunk-000/file-001.parquet"
    first, three.meta = three.meta[:2], three.meta[2:]
    three.write_meta()
    shutil.move(three.root / "meta/episodes/chunk-000/file-000.parquet", later)
    three.meta = first
    three.write_meta()
    cut(later)
    report = ingested(three.root, tmp_path / "out", "lerobot_v3")
    assert (numbers(report.written), report.failed) == ([0, 1, 2, 3], [])
    assert any("meta/episodes/chunk-000/file-001.parquet" in text for text in report.warnings)


def test_a_data_file_of_version_2(two, cut, tmp_path):
    cut(two.data_path(1))
    report = ingested(two.root, tmp_path / "out", "lerobot_v2")
    assert (numbers(report.written), numbers(report.failed)) == ([0, 2, 3], [1])
    assert "episode_000001.parquet" in report.failed[0].reason


def test_the_last_line_of_the_list_of_version_2(two, tmp_path):
    path = two.root / "meta/episodes.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    report = ingested(two.root, tmp_path / "out", "lerobot_v2")
    assert (numbers(report.written), report.failed) == ([0, 1, 2, 3], [])
    assert any("episodes.jsonl" in text for text in report.warnings)


def test_the_table_of_tasks(three, cut, tmp_path):
    """The episodes' own metadata knows the texts, too."""
    cut(three.root / "meta/tasks.parquet")
    report = ingested(three.root, tmp_path / "out", "lerobot_v3")
    assert (numbers(report.written), report.failed) == ([0, 1, 2, 3], [])
    assert any("tasks.parquet" in text for text in report.warnings)


def test_nothing_but_cut_files(three, cut, tmp_path):
    for file in (0, 1):
        cut(three.data_path(file))
    with pytest.raises(SourceError, match=r"file-000\.parquet.*file-001\.parquet"):
        run({"dir_type": "lerobot_v3", **KEYS}, three.root, tmp_path / "out", engine="inline")


def test_the_command_ends_with_1_and_names_what_is_lost(three, tmp_path):
    three.data_path(1).write_bytes(three.data_path(1).read_bytes()[:-8])
    settings = write_json(tmp_path / "config.json", {"dir_type": "lerobot_v3", **KEYS})
    done = knonik("ingest", "--config", settings, "--input", three.root, "--output", tmp_path / "out")
    assert done.returncode == 1
    assert "file-001.parquet" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert sorted(path.name for path in (tmp_path / "out").glob("episode_*")) == ["episode_000000", "episode_000001"]
