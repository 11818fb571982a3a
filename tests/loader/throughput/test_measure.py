"""What ``knonik bench`` measures, and the advice it gives."""

import json
from dataclasses import replace

import numpy as np
import pytest
import simplejpeg

from knonik_assets.cli import main
from knonik_loader.engine.dataset import open_dataset
from knonik_loader.engine.storage import open_storage
from knonik_loader.errors import ConfigError
from knonik_loader.throughput.advice import advise
from knonik_loader.throughput.limit import BareDecode, encode_pictures, stored_jpegs
from knonik_loader.throughput.measure import Measurement, measure
from tests.support.stamps import read_stamp

CALM = Measurement(
    manifest="m",
    profile="training_fast",
    batch_size=8,
    cameras=["rgb_a"],
    batches=100,
    seconds=10.0,
    first_batch_s=0.2,
    samples_per_s=80.0,
    frames_per_s=1000.0,
    limit_frames_per_s=1050.0,
    limit_is="bare decode",
    cores=4,
    threads={"fetch": 2, "decode": 4, "augment": 0},
    busy={"fetch": 0.1, "decode": 0.5},
    limiting="waiting",
    batch_p50_s=0.1,
    batch_p99_s=0.2,
    rss_start=10**9,
    rss_end=10**9,
    rss_peak=10**9,
    ram=16 * 10**9,
    episodes=100,
    episodes_per_batch=7.5,
    near_duplicates=0.01,
    cross_shard=0.1,
)

SYMPTOMS = {
    "decode": ({"limiting": "decode", "busy": {"decode": 0.98}}, "smaller pictures"),
    "decode video": ({"limiting": "decode", "profile": "compact_video"}, "training_fast or training_compressed"),
    "fetch": ({"limiting": "fetch", "frames_per_s": 300.0}, "raise num_fetchers (now 2)"),
    "augment": ({"limiting": "augment", "frames_per_s": 300.0}, "raise augment_workers"),
    "starved": (
        {"frames_per_s": 300.0, "threads": {"fetch": 1, "decode": 2, "augment": 0}},
        "raise num_decoders (now 2)",
    ),
    "all decoders": ({"frames_per_s": 300.0}, "wait for each other: raise prefetch_shards"),
    "memory": ({"rss_peak": 9 * 10**9}, "lower ram_cache_bytes"),
    "growth": ({"rss_end": 2 * 10**9}, "hlps_in_flight bounds it"),
    "correlated": (
        {"near_duplicates": 0.5, "episodes_per_batch": 2.0, "config": {"planner_locality": "low_mem"}},
        "low_mem -> hlp_bounded",
    ),
    "correlated globally": ({"near_duplicates": 0.5, "episodes_per_batch": 2.0}, "larger stride"),
    "cross shard": ({"cross_shard": 0.6}, "larger --shard-size"),
    "uneven": ({"batch_p99_s": 1.0}, "unevenly"),
    "slow start": ({"first_batch_s": 12.0}, "first batch took 12 s"),
    "inactive": ({"inactive": ["ram_cache_bytes"]}, "no effect here: ram_cache_bytes"),
}


def test_a_calm_run_needs_no_advice():
    assert advise(CALM) == []


@pytest.mark.parametrize(("changes", "said"), SYMPTOMS.values(), ids=SYMPTOMS)
def test_each_symptom_has_its_own_advice(changes, said):
    found = advise(replace(CALM, **changes))
    assert len(found) == 1
    assert said in found[0]


def test_no_advice_on_diversity_where_order_was_asked_for():
    plain = replace(CALM, near_duplicates=0.9, episodes_per_batch=1.0, config={"shuffle_mode": "none"})
    assert advise(plain) == []


def test_a_run_in_every_profile(every_profile):
    told = []
    run = measure(every_profile.config(), None, 0.3, lambda *news: told.append(news))
    assert run.batches >= 2
    assert run.cameras == ["rgb_cam_0", "rgb_cam_1"]
    # 4 samples x 4 frames x 2 cameras a batch
    assert run.frames_per_s == pytest.approx(run.batches * 32 / run.seconds)
    assert run.samples_per_s == pytest.approx(run.frames_per_s / 8)
    assert run.limit_frames_per_s > 0
    stored = run.profile == "training_fast"
    assert ("stored JPEGs" in run.limit_is) == stored
    assert run.limiting in {"fetch", "decode", "waiting"}
    assert run.episodes == 3
    assert told[-1][0] <= 1.0
    assert told[-1][1] == run.batches


def test_windows_that_reach_into_a_second_shard(packed):
    # shards of 16 frames and their rest; a window of one frame crosses nothing
    assert measure(packed.config(chunk_len=1), None, 0.1).cross_shard == 0
    lengths = [16] * 3 + [13] + [16] * 2 + [8] + [9]
    crossing = sum(min(length, 3) for length in lengths) / sum(lengths)
    assert measure(packed.config(chunk_len=4), None, 0.1).cross_shard == pytest.approx(crossing)


def test_the_limit_decodes_what_is_stored(packed):
    dataset = open_dataset(open_storage("local", None), str(packed.manifest))
    jpegs = stored_jpegs(dataset, ["rgb_cam_1"], 5)
    dataset.close()
    stamps = [read_stamp(simplejpeg.decode_jpeg(jpeg, "RGB")) for jpeg, _ in jpegs]
    assert {camera for camera, _, _ in stamps} == {1}
    assert {episode for _, episode, _ in stamps} == {0, 1, 2}
    assert {shape for _, shape in jpegs} == {(80, 80, 3)}


def test_bare_decodes_of_several_sizes():
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 255, (size, 40, 3), np.uint8) for size in (16, 24)]
    bare = BareDecode(encode_pictures(pictures), [picture.shape for picture in pictures], 10**6)
    assert bare.nbytes <= 10**6
    assert bare.rate(2, 0.05) > 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "a mapping of loader keys"),
        ("loader: {chunk_len: 2}\nseed: 1\n", "'seed' stands beside"),
        ("loader: 5\n", "block 'loader' holds a int"),
        ("chunk_lem: 2\n", "chunk_len"),
    ],
)
def test_mistakes_in_the_config(packed, tmp_path, capsys, text, said):
    (tmp_path / "c.yaml").write_text(text)
    assert main(["bench", str(packed.manifest), "--config", str(tmp_path / "c.yaml")]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_the_command(packed, tmp_path, capsys):
    config = tmp_path / "train.yaml"
    config.write_text("loader: {batch_size: 2, chunk_len: 3, ram_cache_bytes: 1000}\nstreams: {rgb_cam_0: {}}\n")
    assert main(["bench", str(packed.manifest), "--config", str(config), "--seconds", "0.2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["batch_size"] == 2
    assert report["cameras"] == ["rgb_cam_0"]
    assert report["config"]["chunk_len"] == 3
    assert report["inactive"] == ["ram_cache_bytes"]
    assert any("ram_cache_bytes" in sentence for sentence in report["advice"])
    assert main(["bench", str(packed.manifest), "--seconds", "0.2"]) == 0
    shown = capsys.readouterr()
    assert "of the limit" in shown.out
    assert "advice:" in shown.err


def test_a_missing_manifest_is_one_error(tmp_path, capsys):
    assert main(["bench", str(tmp_path / "none.json")]) == 1
    assert "none.json" in capsys.readouterr().err


def test_measure_passes_the_loaders_errors_on(packed):
    with pytest.raises(ConfigError, match="batch_size"):
        measure(packed.config(batch_size=0), None, 0.1)
