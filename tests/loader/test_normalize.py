"""Scaling goes there and back, and never blows up what does not vary."""

import pickle

import numpy as np
import pytest

from knonik_loader.errors import ConfigError
from knonik_loader.normalize import Normalize, Unnormalize, scale_of
from knonik_loader.stats import RunningStats

MODES = ("mean_std", "min_max", "quantile")


def stats_of(values):
    running = RunningStats(values.shape[1], len(values))
    running.add(values)
    return running.result()


@pytest.fixture
def rows():
    rng = np.random.default_rng(3)
    values = rng.normal(size=(1000, 5)) * (1, 20, 1, 1e-8, 1e-3) + (0, 5, 0, 0.3, 1e5)
    values[:, 2] = 4.0  # constant; channel 3 is constant but for noise, channel 4 but for rounding
    return values.astype(np.float32)


@pytest.mark.parametrize("how", MODES)
def test_there_and_back(rows, how):
    stats = {"state": stats_of(rows)}
    batch = {"state": rows.reshape(10, 100, 5), "other": 1}
    scaled = Normalize(stats, how)(batch)
    assert scaled["other"] == 1
    assert scaled["state"].dtype == np.float32
    back = Unnormalize(stats, how)(scaled)["state"]
    np.testing.assert_allclose(back, batch["state"], rtol=1e-6, atol=1e-5)
    np.testing.assert_array_equal(Unnormalize(stats, how).stream("state", scaled["state"]), back)
    assert np.isfinite(scaled["state"]).all()


def test_mean_std_and_the_unit_interval(rows):
    stats = {"state": stats_of(rows)}
    exact = rows[:, :2].astype(np.float64)
    z = Normalize(stats)({"state": rows})["state"][:, :2]
    np.testing.assert_allclose(z, (exact - exact.mean(0)) / exact.std(0), atol=1e-5)
    unit = Normalize(stats, "min_max")({"state": rows})["state"][:, :2]
    np.testing.assert_allclose((unit.min(0), unit.max(0)), ((-1, -1), (1, 1)), atol=1e-6)
    q = Normalize(stats, "quantile")({"state": rows})["state"][:, :2]
    np.testing.assert_allclose(np.quantile(q, [0.01, 0.99], axis=0), ((-1, -1), (1, 1)), atol=1e-5)


@pytest.mark.parametrize("how", MODES)
def test_what_does_not_vary_is_not_blown_up(rows, how):
    scale = scale_of(stats_of(rows), how)
    assert scale.constant.tolist() == [False, False, True, True, True]
    assert np.abs(scale.normalize(rows)[:, 2:]).max() < 0.02


def test_a_channel_of_nothing_but_nan_passes():
    values = np.full((10, 1), np.nan, np.float32)
    scale = scale_of(stats_of(values), "mean_std")
    assert scale.constant.tolist() == [True]
    assert scale.normalize(np.ones((2, 1), np.float32)).tolist() == [[1.0], [1.0]]


def test_tensors_stay_tensors(rows):
    torch = pytest.importorskip("torch")
    stats = {"state": stats_of(rows)}
    tensor = torch.from_numpy(rows)
    scaled = Normalize(stats)({"state": tensor})["state"]
    assert scaled.dtype == torch.float32
    np.testing.assert_allclose(scaled.numpy(), Normalize(stats)({"state": rows})["state"], atol=1e-6)
    assert Normalize(stats)({"state": tensor.int()})["state"].dtype == torch.float32
    tensor.requires_grad_(True)
    Unnormalize(stats).stream("state", tensor).sum().backward()
    assert tensor.grad is not None


def test_mistakes_have_names(rows):
    stats = {"state": stats_of(rows), "action": stats_of(rows)}
    with pytest.raises(ConfigError, match=r"'actoin' \(did you mean 'action'"):
        Normalize(stats, {"actoin": "mean_std"})
    with pytest.raises(ConfigError, match="'min_maxx' is not one of mean_std, min_max, quantile"):
        Normalize(stats, "min_maxx")
    with pytest.raises(ConfigError, match="the batch has no 'action'"):
        Normalize(stats)({"state": rows})
    with pytest.raises(ConfigError, match="5 channels"):
        Normalize(stats, {"state": "mean_std"})({"state": rows[:, :3]})
    with pytest.raises(ConfigError, match="not scaled"):
        Unnormalize(stats, {"state": "mean_std"}).stream("action", rows)
    copy = pickle.loads(pickle.dumps(Normalize(stats)))
    np.testing.assert_array_equal(
        copy({"state": rows, "action": rows})["state"], Normalize(stats)({"state": rows, "action": rows})["state"]
    )
