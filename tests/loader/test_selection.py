"""Splits by episode, and statistics over the train split alone."""

import json
import logging
import stat

import numpy as np
import pytest

from knonik_loader import ConfigError, PlanError
from knonik_loader.dataset_stats import normalization_stats, split_episodes
from knonik_loader.khlp.splits import split_of
from tests.support.packed import write_packed
from tests.support.stamps import episode_arrays

LENGTHS = [30, 200, 9, 61, 45, 12]
SPLITS = ["train", "train", "val", "train", "val", "train"]
LANGUAGE = ["pick", "place", "pick", "", "stack", "pick"]


@pytest.fixture
def packed(tmp_path):
    return write_packed(tmp_path, LENGTHS, cameras=1, splits=SPLITS, language=LANGUAGE)


def rows(episodes, key="state"):
    return np.concatenate([episode_arrays(e, LENGTHS[e], 0)[key] for e in episodes]).astype(np.float64)


def check(stats, values):
    assert stats.count == len(values)
    assert (stats.min, stats.max) == (values.min(0).tolist(), values.max(0).tolist())
    np.testing.assert_allclose(stats.mean, values.mean(0), rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(stats.std, values.std(0), rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(stats.q01, np.quantile(values, 0.01, 0), rtol=1e-12)
    np.testing.assert_allclose(stats.q99, np.quantile(values, 0.99, 0), rtol=1e-12)


def test_they_are_numpys_over_the_train_split(packed):
    stats = normalization_stats(packed.manifest, cache=False)
    assert list(stats) == ["state", "action"]
    for key in stats:
        check(stats[key], rows([0, 1, 3, 5], key))
    check(normalization_stats(packed.manifest, split="val")["state"], rows([2, 4]))
    check(normalization_stats(packed.manifest, episodes=["episode_000004", 0])["state"], rows([0, 4]))
    check(normalization_stats(packed.manifest, tasks=["pick"])["state"], rows([0, 5]))
    assert list(normalization_stats(packed.manifest, streams=["action"])) == ["action"]


def test_validation_episodes_move_nothing(packed, tmp_path):
    longer = write_packed(tmp_path / "more", [*LENGTHS, 80, 33], cameras=0, splits=[*SPLITS, "val", "test"])
    assert normalization_stats(longer.manifest) == normalization_stats(packed.manifest)


def test_without_splits_all_count(tmp_path):
    packed = write_packed(tmp_path, LENGTHS, cameras=0)
    check(normalization_stats(packed.manifest)["state"], rows(range(6)))
    with pytest.raises(PlanError, match="without splits"):
        normalization_stats(packed.manifest, split="val")


def test_a_dataset_means_its_own_choice_but_never_its_validation_split(packed):
    torch_side = pytest.importorskip("knonik_loader.torch")
    val = torch_side.KhlpDataset(packed.manifest, split="val", streams=["state"])
    stats = normalization_stats(val)
    assert list(stats) == ["state"]
    check(stats["state"], rows([0, 1, 3, 5]))
    chosen = torch_side.KhlpDataset(packed.manifest, episodes=[1, 2], keys="lerobot")
    check(normalization_stats(chosen)["observation.state"], rows([1, 2]))
    assert list(normalization_stats(chosen, streams=["observation.state"])) == ["observation.state"]


def test_they_are_kept_beside_the_manifest(packed, caplog):
    first = normalization_stats(packed.manifest)
    files = list(packed.folder.glob("normalization_stats.*.json"))
    assert len(files) == 1
    assert stat.S_IMODE(files[0].stat().st_mode) & 0o044 == 0o044
    for file in packed.folder.glob("*.khlp"):
        file.rename(file.with_suffix(".away"))
    assert normalization_stats(packed.manifest) == first  # nothing was read again
    with pytest.raises(OSError, match="does not exist"):
        normalization_stats(packed.manifest, split="val")
    for file in packed.folder.glob("*.away"):
        file.rename(file.with_suffix(".khlp"))
    content = json.loads(files[0].read_text())
    content["stats"]["state"]["mean"] = "none"
    for broken in ("{", json.dumps(content), "[]"):
        files[0].write_text(broken)
        with caplog.at_level(logging.WARNING):
            assert normalization_stats(packed.manifest) == first
        assert "computed anew" in caplog.text
        caplog.clear()
    assert json.loads(files[0].read_text())["stats"]["state"]["count"] == 303


def test_another_pack_has_numbers_of_its_own(packed, tmp_path):
    other = write_packed(tmp_path / "other", [50], cameras=0)
    first = normalization_stats(packed.manifest)
    for file in packed.folder.glob("normalization_stats.*.json"):
        file.rename(other.folder / file.name)
    assert normalization_stats(other.manifest) != first


def test_a_folder_that_cannot_be_written_is_no_error(packed, monkeypatch, caplog):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with caplog.at_level(logging.WARNING):
        check(normalization_stats(packed.manifest)["state"], rows([0, 1, 3, 5]))
    assert "No space left" in caplog.text


def test_shares_are_the_packers_rule(packed):
    shares = {"train": 0.5, "val": 0.5}
    splits = split_episodes(packed.manifest, shares, seed=3)
    for name, episodes in splits.items():
        for episode in episodes:
            assert split_of(3, f"source_{int(episode[-6:])}", shares) == name
    assert sorted(name for names in splits.values() for name in names) == [f"episode_{row:06d}" for row in range(6)]


def test_lists_and_the_rest(packed):
    splits = split_episodes(packed.manifest, {"train": None, "val": ["episode_000004", 0]})
    assert splits["val"] == ["episode_000000", "episode_000004"]
    assert splits["train"] == [f"episode_{row:06d}" for row in (1, 2, 3, 5)]
    assert splits.unseen("val") == ["stack"]
    report = str(splits)
    assert "train: 4 episodes, 282 frames" in report
    assert "  1 x (no instruction)" in report
    assert "  2 x pick" in report
    assert dict(split_episodes(packed.manifest)) == {
        "train": [f"episode_{row:06d}" for row in (0, 1, 3, 5)],
        "val": ["episode_000002", "episode_000004"],
    }


@pytest.mark.parametrize(
    ("splits", "error", "named"),
    [
        ({"train": [0, 1], "val": [1]}, ConfigError, "'episode_000001' is in 'train' and in 'val'"),
        ({"train": 0.5, "val": [1]}, ConfigError, "every split a share, or every split a list"),
        ({"train": None, "val": None}, ConfigError, "only one split"),
        ({"train": -1.0, "val": 1.0}, ConfigError, "at least 0"),
        ({"train": 1.0, "val": 0.0}, PlanError, "'val' has no episode"),
        ({"train": ["episode_9"]}, ConfigError, "no episode 'episode_9'"),
        ({}, ConfigError, "no split is named"),
        ([0.9, 0.1], ConfigError, "splits are a mapping"),
    ],
)
def test_mistakes_have_names(packed, splits, error, named):
    with pytest.raises(error, match=named):
        split_episodes(packed.manifest, splits)
    with pytest.raises(ConfigError, match="name a manifest"):
        split_episodes(3, splits)
