"""Raw data and episodes in a bucket: the same bytes as on a disk, nothing read twice, nothing half there."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from knonik_assets.episodes import remote
from knonik_assets.ingest import run
from knonik_assets.sources.remote import mirror
from knonik_assets.storage import LEASE, Lease, ObjectFolder
from knonik_loader.errors import ConfigError, EpisodeError, SourceError, StorageError
from tests.assets.sources.support import V2
from tests.support.buckets import bucket_tree, folder_at, upload_tree
from tests.support.road import ingest_config, tree, write_raw

pytestmark = pytest.mark.usefixtures("scratch")

CONFIG = ingest_config(cameras=1)
REPORTS = ("ingest_report.json",)


@pytest.fixture
def raw(tmp_path):
    return write_raw(tmp_path / "stamped", [5, 6, 7], cameras=1)


def visible(url):
    return {key: data for key, data in bucket_tree(url).items() if not key.startswith(".knonik") and key not in REPORTS}


def in_parts(url, key, data):
    """Upload in parts, which gives another etag than in one piece."""
    import obstore

    folder_at(url).storage.ask(
        f"{url}/{key}", lambda store, path: obstore.put(store, path, data, use_multipart=True, chunk_size=5 << 20)
    )


def statuses(report):
    return [outcome.status for outcome in report.episodes]


@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_the_same_bytes_from_and_to_a_bucket(raw, tmp_path, s3, engine):
    local = run(CONFIG, raw, tmp_path / "local", engine="inline")
    url = upload_tree(raw, f"{s3}/lake/stamped")
    to_disk = run(CONFIG, url, tmp_path / "from_s3", engine=engine)
    assert tree(tmp_path / "from_s3") == tree(tmp_path / "local")
    to_bucket = run(CONFIG, url, f"{s3}/lake/episodes", engine=engine)
    assert visible(f"{s3}/lake/episodes") == tree(tmp_path / "local")
    from_disk = run(CONFIG, raw, f"{s3}/other", engine=engine)
    assert visible(f"{s3}/other") == tree(tmp_path / "local")
    for report in (to_disk, to_bucket, from_disk):
        assert (report.frames, report.bytes, report.source_format) == (local.frames, local.bytes, local.source_format)
    assert to_bucket.output == f"{s3}/lake/episodes"
    said = json.loads(folder_at(f"{s3}/lake/episodes").read_bytes("ingest_report.json"))
    assert said["output"] == f"{s3}/lake/episodes"
    assert not [text for text in map(str, [said, to_disk, from_disk]) if "room-" in text]


@pytest.mark.parametrize("output", ["disk", "bucket"])
def test_only_what_is_new_or_changed_is_downloaded(raw, tmp_path, s3, downloads, output):
    out = str(tmp_path / "out") if output == "disk" else f"{s3}/episodes"
    url = upload_tree(raw, f"{s3}/raw")

    def again():
        downloads.clear()
        report = run(CONFIG, url, out, engine="inline")
        return statuses(report), [key for key in downloads if key.endswith(".hdf5")]

    first = [f"episode_{number}.hdf5" for number in range(3)]
    assert again() == (["written"] * 3, first)
    assert again() == (["skipped"] * 3, [])
    write_raw(raw, [5, 6, 7, 8], cameras=1)
    upload_tree(raw / "episode_3.hdf5", f"{url}/episode_3.hdf5")
    assert again() == (["skipped"] * 3 + ["written"], ["episode_3.hdf5"])
    write_raw(raw, [5, 9], cameras=1)
    upload_tree(raw / "episode_1.hdf5", f"{url}/episode_1.hdf5")
    assert again() == (["skipped", "written", "skipped", "skipped"], ["episode_1.hdf5"])
    assert again() == (["skipped"] * 4, [])


@pytest.mark.parametrize("changed", ["meta/subtasks.jsonl", "meta/episodes.jsonl"])
def test_what_a_lerobot_dataset_says_anew_is_ingested_anew(tmp_path, s3, changed):
    """A text may hold a line separator that ends no line of JSON."""
    dataset = V2(tmp_path / "raw", (6,), cameras=())
    dataset.write(lambda episode: {**dataset.rows(episode), "subtask_index": pa.array([0] * 6)})
    hint = {"episode_index": 0, "length": 6, "tasks": ["one\u2028two"]}
    texts = {"meta/subtasks.jsonl": {"subtask_index": 0, "subtask": "reach"}, "meta/episodes.jsonl": hint}
    for name, value in texts.items():
        (dataset.root / name).write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8")
    (dataset.root / "meta/tasks.jsonl").unlink()
    url = upload_tree(dataset.root, f"{s3}/raw")
    config = {"dir_type": "lerobot_v2"}
    assert statuses(run(config, url, f"{s3}/episodes", engine="inline")) == ["written"]
    assert statuses(run(config, url, f"{s3}/episodes", engine="inline")) == ["skipped"]
    new = (dataset.root / changed).read_text("utf-8").replace("reach", "grasp").replace("two", "three")
    (dataset.root / changed).write_text(new, encoding="utf-8")
    upload_tree(dataset.root / changed, f"{url}/{changed}")
    assert statuses(run(config, url, f"{s3}/episodes", engine="inline")) == ["written"]


def test_other_etags_over_the_same_content_cost_a_download_and_no_more(raw, s3, downloads):
    url = upload_tree(raw, f"{s3}/raw")
    run(CONFIG, url, f"{s3}/episodes", engine="inline")
    before = visible(f"{s3}/episodes")
    folder = folder_at(url)
    etag = folder.head("episode_1.hdf5").etag
    data = (raw / "episode_1.hdf5").read_bytes()
    in_parts(url, "episode_1.hdf5", data)
    assert folder.head("episode_1.hdf5").etag != etag
    downloads.clear()
    report = run(CONFIG, url, f"{s3}/episodes", engine="inline")
    assert statuses(report) == ["skipped"] * 3
    assert [key for key in downloads if key.endswith(".hdf5")] == ["episode_1.hdf5"]
    assert visible(f"{s3}/episodes") == before
    downloads.clear()
    run(CONFIG, url, f"{s3}/episodes", engine="inline")
    assert not [key for key in downloads if key.endswith(".hdf5")]


def test_a_file_that_is_replaced_while_it_is_read_fails_its_episode_alone(raw, s3, monkeypatch):
    url = upload_tree(raw, f"{s3}/raw")
    stage = mirror.Mirror.stage

    def replaced_first(self, objects):
        objects = list(objects)
        if [one.key for one in objects] == ["episode_1.hdf5"]:
            folder_at(url).put_bytes("episode_1.hdf5", (raw / "episode_2.hdf5").read_bytes())
        stage(self, objects)

    monkeypatch.setattr(mirror.Mirror, "stage", replaced_first)
    report = run(CONFIG, url, f"{s3}/episodes", engine="inline")
    assert statuses(report) == ["written", "failed", "written"]
    assert f"{url}/episode_1.hdf5 was replaced since" in report.failed[0].reason
    assert not folder_at(f"{s3}/episodes").objects("episode_000001")


def test_an_episode_larger_than_scratch_fails_alone(raw, s3, monkeypatch):
    write_raw(raw, [5, 60], cameras=1)
    url = upload_tree(raw, f"{s3}/raw")
    sizes = sorted(one.size for one in folder_at(url).objects())
    monkeypatch.setenv("KNONIK_SCRATCH_BYTES", str(sizes[-1] - 1))
    report = run(CONFIG, url, f"{s3}/episodes", engine="inline")
    assert statuses(report) == ["written", "failed", "written"]
    assert f"needs {sizes[-1]:,} bytes" in report.failed[0].reason
    assert "KNONIK_SCRATCH_BYTES" in report.failed[0].reason


def test_scratch_too_small_for_a_single_byte(raw, s3, monkeypatch):
    url = upload_tree(raw, f"{s3}/stamped")
    monkeypatch.setenv("KNONIK_SCRATCH_BYTES", "1")
    with pytest.raises(StorageError, match="KNONIK_SCRATCH_BYTES allows 1 in"):
        run(CONFIG, url, f"{s3}/episodes", engine="inline")
    assert bucket_tree(f"{s3}/episodes") == {}


@pytest.mark.parametrize("beside", [None, "rgb_cam_0.mkv", "notes.txt"])
def test_another_tools_folder_of_that_name_is_left_alone(raw, s3, beside):
    url, out = upload_tree(raw, f"{s3}/stamped"), f"{s3}/episodes"
    for name in ("episode_000001", "calibration", "episode_000007"):
        folder_at(out).put_bytes(f"{name}/metadata.json", b'{"name": "calibration", "version": 3}')
        if beside is not None:
            folder_at(out).put_bytes(f"{name}/{beside}", b"theirs")
    before = visible(out)
    for prune in (False, True):
        with pytest.raises(StorageError, match=f"{out}/episode_000001 stands where .* is no ingested episode: move"):
            run(CONFIG, url, out, engine="inline", prune=prune)
        assert visible(out) == before
    folder_at(out).delete(key for key in before if key.startswith("episode_000001/"))
    report = run(CONFIG, url, out, engine="inline", prune=True)
    assert (statuses(report), report.pruned) == (["written"] * 3, [])
    kept = {key: data for key, data in before.items() if not key.startswith("episode_000001/")}
    assert {key: data for key, data in visible(out).items() if key in kept} == kept
    folder_at(out).put_bytes("episode_000001/metadata.json", b"3")
    folder_at(url).delete(["episode_1.hdf5"])
    assert run(CONFIG, url, out, engine="inline", prune=True).pruned == []
    assert visible(out)["episode_000001/metadata.json"] == b"3"


@pytest.mark.parametrize("file", ["cam/frame_000000.npy", ".zgroup", "rgb_top.webm"])
def test_what_others_put_into_the_output_stays(raw, s3, file):
    url, out = upload_tree(raw, f"{s3}/stamped"), f"{s3}/episodes"
    folder_at(out).put_bytes(f"episode_000001/{file}", b"raw")
    before = bucket_tree(out)
    for _ in range(2):
        with pytest.raises(StorageError, match=f"{out}/episode_000001 stands where .* is no ingested episode: move"):
            run(CONFIG, url, out, engine="inline")
        assert {key: data for key, data in bucket_tree(out).items() if not key.startswith(".knonik/lease")} == before
    run({**CONFIG, "episode_limit": 1}, url, out, engine="inline")
    assert bucket_tree(out)[f"episode_000001/{file}"] == b"raw"
    folder_at(out).delete([f"episode_000001/{file}"])
    assert statuses(run(CONFIG, url, out, engine="inline")) == ["skipped", "written", "written"]
    folder_at(out).delete(["episode_000001/metadata.json"])  # as a run leaves it that is killed while it replaces
    folder_at(out).put_bytes("episode_000001/rgb_gone.webm", b"older")
    assert statuses(run(CONFIG, url, out, engine="inline")) == ["skipped", "written", "skipped"]
    assert "episode_000001/rgb_gone.webm" not in bucket_tree(out)


@pytest.mark.parametrize("copied", [1_000, 1_000_000], ids=["too large to be copied", "copied"])
def test_large_files(raw, tmp_path, s3, monkeypatch, copied):
    monkeypatch.setattr(remote, "ONE_PIECE", 1_000)
    monkeypatch.setattr(remote, "_MOST_COPIED", copied)
    out = f"{s3}/episodes"
    folder_at(out).put_bytes(f"{remote.ASIDE}/gone/episode_000000/rgb_cam_0.mkv", b"of a run that was killed")
    report = run(CONFIG, raw, out, engine="inline")
    assert (statuses(report), report.bytes) == (["written"] * 3, run(CONFIG, raw, tmp_path / "out").bytes)
    assert visible(out) == tree(tmp_path / "out")
    assert max(map(len, visible(out).values())) > 1_000
    assert not folder_at(out).objects(remote.ASIDE)


def test_a_bucket_that_keeps_versions(raw, tmp_path, s3, s3_server, monkeypatch):
    """There, what was removed leaves a mark, which is no object that stands in the way."""
    client = pytest.importorskip("boto3").client("s3", endpoint_url=s3_server)
    status = {"Status": "Enabled"}
    client.put_bucket_versioning(Bucket=s3.removeprefix("s3://"), VersioningConfiguration=status)
    monkeypatch.setattr(remote, "ONE_PIECE", 1_000)
    other = ingest_config(cameras=1, preset={"rgb": {"codec": "jpeg", "quality": 50}})
    for config in (CONFIG, other, CONFIG):
        assert statuses(run(config, raw, f"{s3}/episodes", engine="inline")) == ["written"] * 3
    run(CONFIG, raw, tmp_path / "out")
    assert visible(f"{s3}/episodes") == tree(tmp_path / "out")


def test_a_file_that_changed_before_its_episode_was_whole_fails_the_run(raw, s3, monkeypatch):
    """By somebody who holds no lease."""
    create, out = ObjectFolder.create, f"{s3}/episodes"

    def tampered(self, path, key):
        etag = create(self, path, key)
        if key == "episode_000001/action/.zarray":
            self.put_bytes(key, path.read_bytes().upper())
        return etag

    monkeypatch.setattr(ObjectFolder, "create", tampered)
    with pytest.raises(
        StorageError, match=r"episode_000001/action/\.zarray was replaced by another run while this one"
    ):
        run(CONFIG, raw, out, engine="inline")


def test_a_store_whose_listings_quote_no_etags(raw, tmp_path, s3, monkeypatch):
    """As Azure's, where answers to writing do."""
    objects, out = ObjectFolder.objects, f"{s3}/episodes"

    def unquoted(self, prefix=""):
        return [replace(one, etag=one.etag.strip('"')) for one in objects(self, prefix)]

    monkeypatch.setattr(ObjectFolder, "objects", unquoted)
    assert statuses(run(CONFIG, raw, out, engine="inline")) == ["written"] * 3


@pytest.mark.parametrize(("text", "what"), [(None, "lost"), (b"{", "damaged")])
def test_what_lies_in_an_episode_without_metadata_is_named(raw, s3, text, what):
    out = f"{s3}/episodes"
    run(CONFIG, raw, out, engine="inline")
    before = visible(out)
    folder_at(out).delete(["episode_000001/metadata.json"])
    if text is not None:
        folder_at(out).put_bytes("episode_000001/metadata.json", text)
    folder_at(out).put_bytes("episode_000001/notes.txt", b"mine")
    said = rf"metadata.json is {what}, but holds what no ingest wrote: move that \(notes.txt\) away, and the episode is"
    with pytest.raises(StorageError, match=said):
        run(CONFIG, raw, out, engine="inline")
    folder_at(out).delete(["episode_000001/notes.txt"])
    assert statuses(run(CONFIG, raw, out, engine="inline")) == ["skipped", "written", "skipped"]
    assert visible(out) == before


def test_a_family_whose_episodes_share_files_has_to_fit_as_a_whole(raw, tmp_path, s3, monkeypatch):
    url = upload_tree(raw, f"{s3}/raw")
    monkeypatch.setenv("KNONIK_SCRATCH_BYTES", "1000")
    config = {"dir_type": "hdf5", "demos": "observations"}
    with pytest.raises(StorageError, match=r"share files.*needs [0-9,]+ bytes.*KNONIK_SCRATCH_BYTES allows 1,000"):
        run(config, url, tmp_path / "out", engine="inline")
    assert not (tmp_path / "out").exists()


def test_one_run_at_a_time(raw, s3):
    out = folder_at(f"{s3}/episodes")
    with Lease(out, command="another ingest"), pytest.raises(StorageError, match="another ingest"):
        run(CONFIG, raw, f"{s3}/episodes", engine="inline")
    assert [one.key for one in out.objects()] == [LEASE]
    run(CONFIG, raw, f"{s3}/episodes", engine="inline")


def test_prune(raw, s3):
    url = upload_tree(raw, f"{s3}/raw")
    run(CONFIG, url, f"{s3}/episodes", engine="inline")
    folder_at(url).delete(["episode_1.hdf5"])
    report = run(CONFIG, url, f"{s3}/episodes", engine="inline")
    assert "1 episode that is no longer in the source (episode_000001); --prune" in report.warnings[0]
    assert folder_at(f"{s3}/episodes").objects("episode_000001")
    report = run(CONFIG, url, f"{s3}/episodes", engine="inline", prune=True)
    assert report.pruned == ["episode_000001"]
    assert not folder_at(f"{s3}/episodes").objects("episode_000001")
    assert statuses(report) == ["skipped", "skipped"]


def test_mistakes_in_the_call(raw, tmp_path, s3):
    with pytest.raises(SourceError, match="no object of this name and none below it"):
        run(CONFIG, f"{s3}/nothing", tmp_path / "out")
    with pytest.raises(ConfigError, match="lies inside input"):
        run(CONFIG, f"{s3}/raw", f"{s3}/raw/episodes")
    with pytest.raises(ConfigError, match="known schemes"):
        run(CONFIG, "ftp://host/raw", tmp_path / "out")
    with pytest.raises(StorageError, match="bucket"):
        run(CONFIG, "s3://no-such-bucket-here/raw", tmp_path / "out")
    layout = {**CONFIG, "layout": {"images": {"x": {"key": "observations.images.nowhere"}}}}
    url = upload_tree(raw, f"{s3}/raw")
    with pytest.raises(SourceError, match="nowhere") as caught:
        run(layout, url, f"{s3}/episodes", engine="inline")
    assert f"{url}/episode_0.hdf5" in str(caught.value)
    assert not folder_at(f"{s3}/episodes").objects()
    assert not (tmp_path / "out").exists()


def test_a_dead_file_is_named_by_its_url(raw, s3):
    url = upload_tree(raw, f"{s3}/raw")
    folder_at(url).put_bytes("episode_1.hdf5", b"no HDF5")
    report = run(CONFIG, url, f"{s3}/episodes", engine="inline")
    assert statuses(report) == ["written", "failed", "written"]
    assert f"{url}/episode_1.hdf5" in report.failed[0].reason
    folder_at(url).put_bytes("episode_0.hdf5", b"no HDF5")
    folder_at(url).put_bytes("episode_2.hdf5", b"no HDF5")
    with pytest.raises(EpisodeError, match="no episode of"):
        run(CONFIG, url, f"{s3}/others", engine="inline")
