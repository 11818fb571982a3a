"""LeRobot v2.0 and v2.1 as they are published: wrong templates, phantom cameras, partial downloads."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from knonik_assets.sources import lerobot_v2, lerobot_v3
from knonik_assets.sources.base_contract import Expected, NoCache, SourceContract, as_array
from knonik_loader.errors import EpisodeError, SourceError
from tests.assets.sources.support import V2, V3, encode_video, frames, png, source, stream
from tests.support.stamps import episode_arrays, read_stamp

LENGTHS = [8, 11, 6, 9, 7]
EVERY = range(len(LENGTHS))


@pytest.fixture
def dataset(tmp_path):
    return V2(tmp_path / "set", LENGTHS)


def opened(root, episode, **keys):
    found = source(root, "lerobot_v2", **keys)
    (ref,) = [ref for ref in found.episodes() if ref.source_id == str(episode)]
    return found.open(ref)


def check(root, episodes=EVERY, cameras=("left", "right"), **keys):
    """Every frame of these episodes is its own; returns the warnings."""
    warnings = []
    for number in episodes:
        with opened(root, number, **keys) as episode:
            for place, camera in enumerate(cameras):
                found = [read_stamp(frame) for frame in frames(episode, camera)]
                assert found == [(place, number, row) for row in range(LENGTHS[number])]
            state = episode.numeric(stream(episode, "state"))
            np.testing.assert_array_equal(state, episode_arrays(number, LENGTHS[number])["state"])
            assert episode.facts.language.instruction == f"task {number % 2}"
            warnings += episode.facts.warnings
    return warnings


class TestVideos(SourceContract):
    def make_data(self, folder):
        return V2(folder, [3 + n % 3 for n in range(11)], b_frames=2, gop=12).write()

    def make_source(self, root):
        return source(root, "lerobot_v2")

    def expected(self):
        def one(episode):
            found = episode_arrays(episode, 3 + episode % 3)
            return Expected(
                numeric={"state": found["state"], "action": found["action"]},
                pictures={"left": found["cam_0"], "right": found["cam_1"]},
                depth={},
                tolerance=9.0,
                timestamps=found["timestamps"],
                instruction=f"task {episode % 2}",
            )

        return {str(episode): one(episode) for episode in range(11)}

    def change(self, root, source_id):
        path = root / f"data/chunk-000/episode_{int(source_id):06d}.parquet"
        table = pq.read_table(path)
        states = table["observation.state"].to_pylist()
        states[1][1] += 1
        place = table.column_names.index("observation.state")
        states = pa.array(states, pa.list_(pa.float32(), 4))
        pq.write_table(table.set_column(place, "observation.state", states), path)


def picture_rows(dataset, *, loose=False):
    def rows(episode):
        cells = []
        for row, picture in enumerate(dataset.episodes[episode]["cam_0"]):
            name = f"frame_{row:06d}.png"
            if loose:
                path = dataset.root / "images/observation.images.top" / f"episode_{episode:06d}" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(png(picture))
            cells.append({"bytes": None if loose else png(picture), "path": name})
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        return dataset.rows(episode) | {"observation.images.top": pa.array(cells, kind)}

    return rows


class TestPictures(SourceContract):
    loose = False

    def make_data(self, folder):
        dataset = V2(folder, LENGTHS, (), version="v2.0")
        dataset.info["features"]["observation.images.top"] = {"dtype": "image", "shape": [96, 112, 3]}
        dataset.info["video_path"] = None
        return dataset.write(picture_rows(dataset, loose=self.loose))

    def make_source(self, root):
        return source(root, "lerobot_v2")

    def expected(self):
        def one(episode):
            found = episode_arrays(episode, LENGTHS[episode])
            numeric = {"state": found["state"], "action": found["action"]}
            return Expected(numeric=numeric, pictures={"top": found["cam_0"]}, depth={})

        return {str(episode): one(episode) for episode in EVERY}

    def change(self, root, source_id):
        path = root / f"data/chunk-000/episode_{int(source_id):06d}.parquet"
        table = pq.read_table(path)
        cells = table["observation.images.top"].to_pylist()
        cells[0]["bytes"] = png(np.full((96, 112, 3), 7, np.uint8))
        column = table.schema.field("observation.images.top")
        place = table.column_names.index(column.name)
        pq.write_table(table.set_column(place, column.name, pa.array(cells, column.type)), path)


class TestLoosePictures(TestPictures):
    loose = True

    def change(self, root, source_id):
        folder = root / f"images/observation.images.top/episode_{int(source_id):06d}"
        (folder / "frame_000002.png").write_bytes(png(np.full((96, 112, 3), 7, np.uint8)))


def test_wrong_templates_a_phantom_camera_and_wrong_totals(dataset):
    """As in a published sample: only the names on disk are right."""
    dataset.info["data_path"] = "data/chunk-{episode_index:03d}/episode_{episode_index:06d}.parquet"
    dataset.info["video_path"] = "videos/chunk-{episode_index:03d}/{video_key}/episode_{episode_index:06d}.mp4"
    dataset.info["features"]["observation.images.leftover"] = {"dtype": "video", "shape": [9, 9, 3]}
    dataset.info["total_episodes"] = 100
    root = dataset.write()
    assert check(root) == []
    found = source(root, "lerobot_v2")
    found.episodes()
    text = "\n".join(found.warnings)
    assert "observation.images.leftover, of which there is no file" in text
    assert "info.json says 100 episodes, 5 are there" in text
    assert "doesn't lead to 4 of 5 data files" in text


@pytest.mark.parametrize("template", ["{nonsense}/x.parquet", 7, None, "data/{chunk_index}/{file_index}.parquet"])
def test_a_template_that_is_none(dataset, template):
    dataset.info["data_path"] = template
    check(dataset.write(), [0, 4])


def test_a_template_that_leads_out_of_the_dataset_is_refused(dataset):
    dataset.info["data_path"] = "../{episode_index}.parquet"
    with pytest.raises(SourceError, match="leads out"):
        source(dataset.write(), "lerobot_v2").episodes()


def test_a_camera_name_that_leads_out_of_the_dataset_is_refused(dataset):
    dataset.info["features"]["../../etc"] = {"dtype": "video"}
    with pytest.raises(SourceError, match="leads out"):
        source(dataset.write(), "lerobot_v2").episodes()


def test_times_that_begin_late(dataset):
    def rows(episode):
        times = pa.array((np.arange(LENGTHS[episode]) + 1) / 30, pa.float64())
        return dataset.rows(episode) | {"timestamp": times}

    root = dataset.write(rows)
    assert check(root) == []
    with opened(root, 2) as episode:
        np.testing.assert_allclose(episode.facts.timestamps, (np.arange(6) + 1) / 30)


def test_recorded_times_that_jitter_leave_every_row_its_frame(dataset):
    """Rows and frames are equal in number, so their order tells which belong together; the difference is said."""
    rng = np.random.default_rng(3)

    def rows(episode):
        times = np.cumsum(rng.uniform(0.01, 0.08, LENGTHS[episode]))
        return dataset.rows(episode) | {"timestamp": pa.array(times, pa.float32())}

    warnings = check(dataset.write(rows))
    assert warnings
    assert all("their order is believed" in warning for warning in warnings)


def test_fewer_frames_than_rows_are_refused(dataset):
    root = dataset.write()
    encode_video(dataset.video_path("left", 1), dataset.episodes[1]["cam_0"][:9])
    with pytest.raises(EpisodeError, match=r"episode_000001\.mp4 ends after 9 frames; its rows need 11"):
        opened(root, 1)
    check(root, [0, 2])


def test_more_frames_than_rows_are_said(dataset):
    root = dataset.write()
    encode_video(dataset.video_path("left", 0), np.concatenate([dataset.episodes[0]["cam_0"]] * 2)[:10])
    assert any("2 frames" in warning and "belong to no row" in warning for warning in check(root, [0]))


def test_a_missing_video_is_named(dataset):
    root = dataset.write()
    dataset.video_path("right", 3).unlink()
    with pytest.raises(EpisodeError, match=r"observation\.images\.right/episode_000003\.mp4 is missing"):
        opened(root, 3)
    check(root, [3], ["left"], layout={"images": {"left": "left"}, "numeric": {"state": "state"}})


def test_no_video_at_all_is_no_phantom(dataset):
    root = dataset.write()
    for path in root.rglob("*.mp4"):
        path.unlink()
    with pytest.raises(EpisodeError, match=r"\.mp4 is missing \(a partial download"):
        opened(root, 0)


def test_a_missing_data_file_is_named_and_the_others_go_on(dataset):
    root = dataset.write()
    dataset.data_path(2).unlink()
    with pytest.raises(EpisodeError, match=r"episode_000002\.parquet is missing"):
        opened(root, 2)
    check(root, [0, 1, 3, 4])


def test_episodes_missing_from_the_list_and_out_of_order(dataset):
    dataset.hints = [dataset.hints[4], dataset.hints[1]]
    root = dataset.write()
    lines = root / "meta/episodes.jsonl"
    lines.write_text(lines.read_text() + "{broken\n")
    assert check(root) == []
    lines.unlink()
    assert check(root) == []


def test_rows_of_another_episode_in_a_file(dataset):
    def rows(episode):
        number = 3 if episode == 1 else episode
        return dataset.rows(episode) | {"episode_index": pa.array([number] * LENGTHS[episode], pa.int64())}

    root = dataset.write(rows)
    assert any("its rows say episode 3" in warning for warning in check(root, [1]))
    dataset.write_data(0, lambda e: dataset.rows(0) | {"episode_index": pa.array([0] * 4 + [1] * 4, pa.int64())})
    with pytest.raises(EpisodeError, match="rows of 2 episodes"):
        opened(root, 0)


def test_a_truncated_data_file_fails_alone(dataset):
    root = dataset.write()
    dataset.data_path(0).write_bytes(dataset.data_path(0).read_bytes()[:-30])
    with pytest.raises(EpisodeError, match=r"episode_000000\.parquet"):
        opened(root, 0)
    check(root, [1, 2, 3, 4])


def test_either_reader_sends_the_other_version_on(dataset, tmp_path):
    with pytest.raises(SourceError, match="lerobot_v2"):
        source(dataset.write(), "lerobot_v3").episodes()
    other = V3(tmp_path / "three", [5], {}).write()
    with pytest.raises(SourceError, match="lerobot_v3"):
        source(other, "lerobot_v2").episodes()


def test_a_new_text_of_a_task_changes_the_fingerprint_of_its_episodes_only(dataset):
    root = dataset.write()
    found = source(root, "lerobot_v2")
    before = {ref.source_id: found.fingerprint(ref, NoCache()) for ref in found.episodes()}
    lines = [{"task_index": 0, "task": "task 0"}, {"task_index": 1, "task": "another"}]
    (root / "meta/tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    after = {ref.source_id: found.fingerprint(ref, NoCache()) for ref in found.episodes()}
    assert {name for name in before if before[name] != after[name]} == {"1", "3"}


@pytest.mark.parametrize(
    ("version", "module", "loader"), [(2, lerobot_v2, "read_meta"), (3, lerobot_v3, "build_index")]
)
def test_the_index_is_read_once_however_many_episodes_a_process_opens(tmp_path, monkeypatch, version, module, loader):
    """Every task of a worker makes its own source; reading the index each time grows with the square of the dataset."""
    root = (V2(tmp_path / "set", LENGTHS) if version == 2 else V3(tmp_path / "set", LENGTHS, {"left": [5]})).write()
    calls = []
    real = getattr(module, loader)
    monkeypatch.setattr(module, loader, lambda *args: calls.append(args) or real(*args))
    refs = source(root, f"lerobot_v{version}").episodes()
    for ref in refs:
        with source(root, f"lerobot_v{version}").open(ref) as episode:
            as_array(next(iter(episode.frames(stream(episode, "left")))))
    assert len(calls) == 1
    (root / "meta/info.json").write_text((root / "meta/info.json").read_text() + " ")
    source(root, f"lerobot_v{version}").episodes()
    assert len(calls) == 2


def test_a_video_whose_codec_is_destroyed(dataset):
    root = dataset.write()
    path = dataset.video_path("left", 0)
    path.write_bytes(path.read_bytes().replace(b"avc1", b"zzz9"))
    with pytest.raises(EpisodeError, match=r"episode_000000\.mp4.*codec"):
        opened(root, 0)
