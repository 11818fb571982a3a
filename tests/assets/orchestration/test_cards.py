"""Dataset cards: what they mean, and what every mistake says."""

from pathlib import Path

import pytest

from knonik_assets.configs.card import card_folder, lake_folder, load_card
from knonik_assets.configs.cards import load_cards, scan_cards
from knonik_assets.configs.cron import cron_mistake
from knonik_loader.errors import ConfigError

GOOD = "raw: ../raw\ningest: {dir_type: episodic, data_type: hdf5}\n"


@pytest.fixture(autouse=True)
def _no_home(monkeypatch):
    for name in ("KNONIK_DATASETS", "KNONIK_LAKE", "DAGSTER_HOME"):
        monkeypatch.delenv(name, raising=False)


def write(folder: Path, text: str, name: str = "demo.yaml") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    return path


def test_defaults_and_relative_paths(tmp_path):
    card = load_card(write(tmp_path / "cards", GOOD + "packed: out\n"))
    assert card.name == "demo"
    assert card.raw.path == tmp_path / "raw"
    assert card.episodes.path == tmp_path / "lake" / "demo" / "episodes"
    assert card.packed.path == tmp_path / "cards" / "out"
    assert card.profiles == ("compact_video",)
    assert card.on_bad_episode == "exclude"
    assert card.ingest_config().data_type == "hdf5"


def test_urls_stand_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setenv("KNONIK_LAKE", "s3://lake/all")
    card = load_card(write(tmp_path / "cards", GOOD.replace("../raw", "s3://bucket/raw/") + "packed: gs://other/x\n"))
    assert str(card.raw) == "s3://bucket/raw"
    assert str(card.episodes) == "s3://lake/all/demo/episodes"
    assert str(card.packed_folder("training_fast")) == "gs://other/x/training_fast"


def test_lake_and_folder_follow_the_environment(tmp_path, monkeypatch):
    assert card_folder() == Path("dagster_home/datasets").resolve()
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    assert card_folder() == tmp_path / "home" / "datasets"
    assert lake_folder(tmp_path / "elsewhere").path == tmp_path / "home" / "lake"
    monkeypatch.setenv("KNONIK_LAKE", str(tmp_path / "lake"))
    monkeypatch.setenv("KNONIK_DATASETS", str(tmp_path / "cards"))
    assert lake_folder(tmp_path).path == tmp_path / "lake"
    assert card_folder() == tmp_path / "cards"


def test_profiles_have_their_own_options(tmp_path):
    pack = "pack: {shard_size: 20, profiles: {compact_video: {codec: vp9}, training_fast: {quality: 90, seed: 3}}}\n"
    card = load_card(write(tmp_path, GOOD + pack))
    assert card.pack == {
        "compact_video": {"shard_size": 20, "codec": "vp9"},
        "training_fast": {"shard_size": 20, "quality": 90, "seed": 3},
    }
    assert card.packed_folder("training_fast") == card.packed / "training_fast"


def test_no_profile_at_all_is_allowed(tmp_path):
    assert load_card(write(tmp_path, GOOD + "pack: {profiles: []}\n")).profiles == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ingest: {dir_type: episodic}\n", ["raw is required"]),
        ("raw: x\n", ["ingest is required"]),
        ("- a\n", ["must hold the keys"]),
        (GOOD + "schedul: x\n", ["unknown key 'schedul'", "did you mean 'schedule'"]),
        (GOOD + "path: x\n", ["unknown key 'path'"]),
        (GOOD + "pack: {shard_sise: 3}\n", ["pack", "unknown key 'shard_sise'", "'shard_size'"]),
        (GOOD + "pack: {profiles: [training_fst]}\n", ["pack.profiles", "'training_fst'", "'training_fast'"]),
        (GOOD + "pack: {profiles: [training_fast], codec: vp9}\n", ["training_fast", "codec means nothing"]),
        (GOOD + "pack: {profiles: [], shard_size: 0}\n", ["shard_size"]),
        (GOOD + "pack: {profiles: {compact_video: 3}}\n", ["compact_video", "block"]),
        (GOOD + "pack: {profiles: 3}\n", ["pack.profiles", "3"]),
        (GOOD + "pack: {overwrite: true}\n", ["overwrite is decided by the pipeline"]),
        (GOOD + "pack: {storage_profile: training_fast}\n", ["storage_profile is decided by 'profiles'"]),
        (GOOD + "pack: {workers: none}\n", ["workers must be a whole number"]),
        (GOOD + "pack: [a]\n", ["pack: must be a block"]),
        (GOOD + "checks: {max_gapp: 3}\n", ["checks", "'max_gapp'", "'max_gap'"]),
        (GOOD + "checks: {severity: {no_gaps: fatal}}\n", ["checks.severity.no_gaps", "'error' or 'warn'"]),
        (GOOD + "checks: {severity: {no_gapps: warn}}\n", ["unknown check 'no_gapps'", "'no_gaps'"]),
        (GOOD + "checks: {psnr_floor: {training_fst: 3}}\n", ["psnr_floor", "training_fast"]),
        (GOOD + "schedule: every night\n", ["schedule", "no cron expression", "2 fields"]),
        (GOOD + "schedule: 0 25 * * *\n", ["'25' is no hour"]),
        (GOOD + "config: {rols: {action: a}}\n", ["config: unknown key 'rols'", "'roles'"]),
        (GOOD + "config: {roles: {act: a}}\n", ["config: roles: unknown key 'act'", "'action'"]),
        (GOOD + "config: {action_semantics: joints}\n", ["config", "unknown action_semantics 'joints'"]),
        (GOOD + "config: {arms: {name: left}}\n", ["config: arms", "list"]),
        (GOOD + "config: {streams: {numeric: {qpos: {names: [a]}}}}\n", ["config: streams.numeric.qpos", "'names'"]),
        (GOOD + "config: 3\n", ["config"]),
        (GOOD + "owners: bob\n", ["owners: must be a list, not 'bob'"]),
        (GOOD + "owners: [bob]\n", ["owners", "'bob' is neither"]),
        (GOOD + "tags: {a: b c}\n", ["tags", "'b c'"]),
        (GOOD + "name: a/b\n", ["name", "'a/b'"]),
        (GOOD + "on_bad_episode: drop\n", ["on_bad_episode", "'exclude' or 'block'"]),
        (GOOD + "engine: dask\n", ["engine", "'dask'"]),
        (GOOD + "ray: {address: auto}\n", ["ray", "engine is 'processes'"]),
        (GOOD + "keep_days: -1\n", ["keep_days", "from 0 on", "-1"]),
        (GOOD + "keep_days: two weeks\n", ["keep_days", "'two weeks'"]),
        (GOOD + "keep_days: .nan\n", ["keep_days", "nan"]),
        (GOOD + "keep_days: true\n", ["keep_days", "forever", "True"]),
        (GOOD + "episodes: ftp://bucket/x\n", ["episodes", "ftp://bucket/x", "known schemes are s3, gs, az and file"]),
        (GOOD + "episodes: s3:///x\n", ["episodes", "names no bucket"]),
        (GOOD.replace("../raw", "s3://b/x") + "episodes: s3://b/x/y\n", ["episodes", "in the raw data"]),
        (GOOD + "episodes: s3://b/x\npacked: s3://b/x/\n", ["packed", "where the episodes go too"]),
        (GOOD + "packed: [a]\n", ["packed", "must be a path"]),
        (GOOD + "episodes: x\npacked: x\n", ["packed", "where the episodes go too"]),
        ("raw: x\ningest: {dir_type: episodic, data_type: hdf5, data_dir: y}\n", ["data_dir", "'raw'"]),
        ("raw: x\ningest: {dir_type: episodic, data_type: hdf5, presset: low}\n", ["ingest", "presset", "'preset'"]),
        ("raw: x\ningest: 7\n", ["ingest"]),
        ("raw: x\nraw: y\n", ["line 2", "'raw' stands twice"]),
        ("raw: [\n", ["line 2"]),
    ],
)
def test_mistakes_name_file_and_key(tmp_path, text, words):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_card(path)
    for word in [str(path), *words]:
        assert word in str(caught.value)


def test_a_broken_card_takes_no_other_down(tmp_path):
    write(tmp_path, GOOD, "good.yaml")
    broken = write(tmp_path, GOOD + "oops: 1\n", "broken.yml")
    found = scan_cards(tmp_path)
    assert list(found.cards) == ["good"]
    assert found.names == ["broken", "good"]
    assert str(broken) in str(found.problems["broken"].error)
    with pytest.raises(ConfigError, match="oops"):
        found.card("broken")
    with pytest.raises(ConfigError, match="oops"):
        load_cards(tmp_path)


def test_a_card_is_read_again_when_it_is_used(tmp_path):
    write(tmp_path, GOOD)
    found = scan_cards(tmp_path)
    write(tmp_path, GOOD + "on_bad_episode: block\n")
    assert found.card("demo").on_bad_episode == "block"
    with pytest.raises(ConfigError, match="unknown dataset 'dem'; did you mean 'demo'"):
        found.card("dem")


def test_one_name_twice(tmp_path):
    write(tmp_path, GOOD, "a.yaml")
    write(tmp_path, GOOD + "name: a\n", "b.yaml")
    found = scan_cards(tmp_path)
    assert found.names == ["a", "b"]
    assert "belongs to a.yaml already" in str(found.problems["b"].error)


def test_a_healthy_card_keeps_a_name_that_a_broken_file_has(tmp_path):
    write(tmp_path, GOOD + "oops: 1\n", "arm.yaml")
    write(tmp_path, GOOD + "name: arm\n", "other.yaml")
    found = scan_cards(tmp_path)
    assert found.names == ["arm"]
    assert found.card("arm").path.name == "other.yaml"
    assert [problem.path.name for problem in found.problems.values()] == ["arm.yaml"]


def test_no_folder_no_cards(tmp_path):
    assert scan_cards(tmp_path / "none").names == []


@pytest.mark.parametrize(
    "text",
    [
        "0 3 * * *",
        "*/15 * * * *",
        "0 0 1,15 * mon-fri",
        "@daily",
        "5 4 * JAN,jul 7",
        "0 0 29 2 *",
        "0 0 31 1,feb *",
    ],
)
def test_cron_that_dagster_takes(text):
    dg = pytest.importorskip("dagster")

    assert cron_mistake(text) is None
    dg.ScheduleDefinition(name="x", cron_schedule=text, job_name="y")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "* * * *",
        "60 * * * *",
        "* * 0 * *",
        "* * * 13 *",
        "*/0 * * * *",
        "5-1 * * * *",
        "@often",
        "a * * * *",
        "0 0 31 2 *",
        "0 0 31 2 mon",
        "0 0 30-31 feb *",
        "0 0 31 4,6,9,11 *",
    ],
)
def test_cron_that_nobody_can_mean(text):
    assert cron_mistake(text)
