"""A user's mistakes and a machine's troubles: one clear message each, the right exit status, nothing lost."""

import os
import subprocess

import pytest

from tests.support.road import ingest_config, knonik, tree, write_json, write_raw

LENGTHS = [12, 13, 14]


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return write_raw(tmp_path_factory.mktemp("mistakes") / "raw", LENGTHS, cameras=1)


def ingest(raw, out, config, *more):
    path = write_json(raw.parent / f"{out.name}-{abs(hash(str(config)))}.json", config)
    return knonik("ingest", "--config", path, "--input", raw, "--output", out, "--quiet", *more)


def one_message(run, *words):
    """Standard error is one or two lines that hold all the words, and no traceback."""
    lines = [line for line in run.stderr.splitlines() if line.strip()]
    assert 1 <= len(lines) <= 2, run.stderr
    for word in words:
        assert word in run.stderr, (word, run.stderr)
    assert "Traceback" not in run.stderr


def test_a_misspelt_key_is_named_with_its_place_and_its_nearest(raw, tmp_path):
    config = ingest_config(cameras=1)
    config["layout"]["imges"] = config["layout"].pop("images")
    run = ingest(raw, tmp_path / "out", config)
    assert run.returncode == 2
    one_message(run, "imges", "layout", "images")
    assert not (tmp_path / "out").exists()


def test_an_absent_camera_is_named_with_those_that_exist(raw, tmp_path):
    config = ingest_config(cameras=1)
    config["layout"]["images"]["cam_9"] = {"key": "observations.images.cam_9"}
    run = ingest(raw, tmp_path / "out", config)
    assert run.returncode in (1, 2)
    one_message(run, "cam_9", "cam_0")
    assert not list((tmp_path / "out").glob("episode_*"))


def test_a_truncated_file_among_good_ones_fails_alone_and_heals(raw, tmp_path):
    bad = tmp_path / "raw"
    bad.mkdir()
    for path in raw.glob("*.hdf5"):
        (bad / path.name).write_bytes(path.read_bytes())
    whole = (bad / "episode_1.hdf5").read_bytes()
    (bad / "episode_1.hdf5").write_bytes(whole[: len(whole) // 2])
    out = tmp_path / "out"
    config = ingest_config(cameras=1)
    run = ingest(bad, out, config)
    assert run.returncode == 1
    one_message(run, "episode_000001", "episode_1")
    assert sorted(path.name for path in out.glob("episode_*")) == ["episode_000000", "episode_000002"]
    (bad / "episode_1.hdf5").write_bytes(whole)
    assert ingest(bad, out, config).returncode == 0
    assert ingest(raw, tmp_path / "undisturbed", config).returncode == 0
    assert tree(out) == tree(tmp_path / "undisturbed")


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 1 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True, check=False
    ).returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_is_one_message_and_the_run_goes_on_elsewhere(raw, small_disk, tmp_path):
    out = small_disk / "out"
    config = ingest_config(cameras=1, preset={"rgb": {"codec": "jpeg", "quality": 100}})
    big = write_raw(tmp_path / "raw", [60, 60], cameras=1, size=(200, 240))
    run = ingest(big, out, config)
    assert run.returncode == 1
    one_message(run, "No space left", str(out))
    assert all((path / "metadata.json").exists() for path in out.glob("episode_*"))


def test_a_full_disk_while_packing_leaves_no_dataset(raw, small_disk, tmp_path):
    big = write_raw(tmp_path / "raw", [60, 60], cameras=1, size=(200, 240))
    assert ingest(big, tmp_path / "episodes", ingest_config(cameras=1)).returncode == 0
    out = small_disk / "packed"
    options = ["--input-dir", tmp_path / "episodes", "--output-dir", out, "--dataset-name", "full", "--quiet"]
    run = knonik("pack", *options, "--storage-profile", "training_fast", "--quality", 100, module="knonik_ingest")
    assert run.returncode == 1
    one_message(run, "No space left", str(out))
    assert not (out / "hlp_manifest.json").exists()


def test_an_output_that_cannot_be_written_is_one_message(raw, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    run = ingest(raw, blocked / "out", ingest_config(cameras=1))
    assert run.returncode in (1, 2)
    one_message(run, str(blocked))
    if os.geteuid() == 0:
        # root ignores permission bits, but not a read-only mount
        run = ingest(raw, tmp_path.__class__("/proc/knonik"), ingest_config(cameras=1))
        assert run.returncode in (1, 2)
        one_message(run, "/proc/knonik")


def test_missing_things_are_named(raw, tmp_path):
    run = knonik("ingest", "--config", tmp_path / "none.json", "--output", tmp_path / "out")
    assert run.returncode == 2
    one_message(run, "none.json")
    (tmp_path / "nowhere").mkdir()
    run = ingest(tmp_path / "nowhere", tmp_path / "out", ingest_config(cameras=1))
    assert run.returncode in (1, 2)
    one_message(run, "nowhere", "episode_")
    options = [
        "--input-dir",
        tmp_path / "absent",
        "--output-dir",
        tmp_path / "packed",
        "--dataset-name",
        "x",
        "--quiet",
    ]
    run = knonik("pack", *options)
    assert run.returncode in (1, 2)
    one_message(run, "absent")
    assert not (tmp_path / "packed").exists()


def test_outputs_that_cannot_be_say_what_to_do(raw, tmp_path):
    config = write_json(tmp_path / "config.json", ingest_config(cameras=1))
    run = knonik("ingest", "--config", config, "--input", raw, "--output", config)
    assert run.returncode == 1
    one_message(run, str(config), "a file stands where a folder is needed")
    run = knonik("ingest", "--config", config, "--input", raw, "--output", "/proc/none")
    assert run.returncode == 1
    one_message(run, "/proc/none", "correct the path")


def test_a_configured_issuer_closes_everything(raw, tmp_path):
    config = write_json(tmp_path / "config.json", ingest_config(cameras=1))
    issuer = {"KNONIK_ISSUER": "https://login.example.org"}
    for call in (
        ["login", "--product", "ingest"],
        ["status", "--product", "multidataloader"],
        ["logout", "--product", "ingest"],
        ["ingest", "--config", config, "--input", raw, "--output", tmp_path / "out"],
        ["pack", "--input-dir", tmp_path, "--output-dir", tmp_path / "out", "--dataset-name", "x"],
    ):
        run = knonik(*call, **issuer)
        assert run.returncode == 1, call
        one_message(run, "KNONIK_ISSUER", "login.example.org")
    assert not (tmp_path / "out").exists()
    for product in ("ingest", "multidataloader"):
        for command in ("login", "status", "logout"):
            run = knonik(command, "--product", product)
            assert run.returncode == 0
            assert len(run.stdout.splitlines()) == 1
            assert product in run.stdout


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (["frobnicate"], ["frobnicate"]),
        (["ingest"], ["--config"]),
        (
            ["pack", "--shard-size", "0", "--input-dir", "a", "--output-dir", "b", "--dataset-name", "c"],
            ["--shard-size"],
        ),
        (["detect", ""], ["the path is empty", "raw dataset"]),
        (["inspect", ""], ["the path is empty"]),
        (["login", "--product", "coffee"], ["coffee", "multidataloader"]),
    ],
)
def test_a_mistaken_call_exits_with_two(call, words):
    run = knonik(*call)
    assert run.returncode == 2
    one_message(run, *words)


def test_a_url_of_another_kind_is_refused_as_a_url(raw, tmp_path):
    """Nothing is written to a folder called ``ftp:`` by mistake."""
    config = write_json(tmp_path / "config.json", ingest_config(cameras=1))
    calls = [
        (["ingest", "--config", config, "--input", raw, "--output", "ftp://bucket/out"], None),
        (["ingest", "--config", config, "--input", "ftp://bucket/raw", "--output", tmp_path / "out"], None),
        (["pack", "--input-dir", tmp_path, "--output-dir", "ftp://bucket/out", "--dataset-name", "x"], None),
        (
            ["pack", "--input-dir", "ftp://bucket/in", "--output-dir", tmp_path / "out", "--dataset-name", "x"],
            "knonik_ingest",
        ),
    ]
    for call, module in calls:
        run = knonik(*call, module=module)
        assert run.returncode == 2, run.stderr
        one_message(run, "://bucket/")


def test_a_config_that_cannot_be_written_is_one_message(raw, tmp_path):
    run = knonik("detect", raw, "--write", tmp_path / "nowhere" / "config.yaml")
    assert run.returncode == 1
    one_message(run, "nowhere", "config.yaml")


@pytest.mark.parametrize("command", ["detect", "inspect"])
def test_a_device_is_no_dataset(command):
    run = knonik(command, "/dev/null")
    assert run.returncode == 1
    one_message(run, "/dev/null")
