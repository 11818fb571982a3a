"""Frames that a recorder missed: what is asked for at their time comes from near by, or is marked as missing."""

from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

from knonik.ingest import detect, pack, run
from knonik_loader import ConfigError, ShardedDataLoader
from tests.assets.sources.support import V2, V3, encode_video, write_hdf5
from tests.support.road import loader_config
from tests.support.stamps import episode_arrays, read_stamp

pytestmark = pytest.mark.filterwarnings("ignore:fps [35]0 is recorded:UserWarning")  # a gap lowers the mean rate

FPS = 30
SLOTS = 24
LATE = 6000
"""Slots before the first frame of a recorder that counts from when it was switched on: there float32 is 15 us coarse."""
OFFSETS = [Fraction(n, 10) for n in (-30, -20, -14, -10, -4, 0, 4, 10, 14, 20, 30)]
"""Frames from the anchor."""


def even_video(folder, times):
    """LeRobot 2: the rows say when they were taken, the video runs evenly."""
    dataset = V2(folder, [len(times)], ["cam_0"])
    dataset.write(lambda episode: dataset.rows(episode) | {"timestamp": pa.array(times, pa.float32())})
    return {"dir_type": "lerobot_v2"}


def same_gap_in_the_video(folder, times):
    """LeRobot 3: rows and video miss the same frame."""
    dataset = V3(folder, [len(times)], {"cam_0": [1]})
    dataset.meta[0]["videos/observation.images.cam_0/from_timestamp"] = 0.0
    dataset.write(lambda episode: dataset.rows(episode) | {"timestamp": pa.array(times - times[0], pa.float32())})
    slots = np.rint((times - times[0]) * FPS).astype(int)
    encode_video(dataset.video_path("cam_0", 0), dataset.episodes[0]["cam_0"], pts=(1000 * slots).tolist())
    return {"dir_type": "lerobot_v3"}


def float32_clock(folder, times):
    arrays = episode_arrays(0, len(times), cameras=1)
    streams = {name: arrays[name] for name in ("cam_0", "state", "action")}
    write_hdf5(folder / "episode_0.hdf5", timestamps=times.astype(np.float32), **streams)
    return {"dir_type": "episodic", "data_type": "hdf5", "fps": FPS}


def float32_clock_alone(folder, times):
    """Nothing but the clock says how many frames a second there are."""
    return {key: value for key, value in float32_clock(folder, times).items() if key != "fps"}


WRITERS = [even_video, same_gap_in_the_video, float32_clock, float32_clock_alone]


def resolved(slots, anchor, offset, rounding):
    """(frame, whether it counts) by looking at every frame, in whole slots and tenths of them."""
    asked = slots[anchor] + offset
    best = {
        "nearest": lambda frame: (abs(slots[frame] - asked), frame),
        "floor": lambda frame: (asked - slots[frame] if slots[frame] <= asked else 1000, frame),
        "ceil": lambda frame: (slots[frame] - asked if slots[frame] >= asked else 1000, -frame),
    }[rounding]
    frame = min(range(len(slots)), key=best)
    there = slots[0] - 1 < asked < slots[-1] + 1 and best(frame)[0] <= 1
    if rounding == "nearest":  # beyond an end by more than half a frame, the one behind the end would be nearer
        there = there and slots[0] - Fraction(1, 2) < asked <= slots[-1] + Fraction(1, 2)
    return frame, there


@pytest.fixture(scope="module", params=[[13], [13, 14, 15]], ids=["one", "three"])
def missed(request):
    return request.param


@pytest.fixture(scope="module", params=[0, LATE], ids=["from zero", "late"])
def slots(request, missed):
    return (request.param + np.delete(np.arange(SLOTS), missed)).tolist()


@pytest.fixture(scope="module", params=WRITERS, ids=lambda writer: writer.__name__)
def manifest(request, slots, tmp_path_factory):
    folder = tmp_path_factory.mktemp("missed")
    config = request.param(folder / "raw", np.array(slots) / FPS)
    config |= {"preset": {"rgb": {"codec": "jpeg", "quality": 95}}}
    (written,) = run(config, folder / "raw", folder / "episodes", engine="inline").written
    assert written.frames == len(slots)
    return pack(folder / "episodes", folder / "packed", "missed", 8, 2, storage_profile="training_fast")[0]


def loaded(manifest, **keys):
    deltas = [float(offset / FPS) for offset in OFFSETS]
    config = loader_config(manifest, shuffle_mode="none", delta_timestamps={"cam_0": deltas, "state": deltas}, **keys)
    with ShardedDataLoader(config) as loader:
        for batch in loader:
            for sample, anchor in enumerate(batch["_frame_indices"].tolist()):
                yield anchor, {key: value[sample] for key, value in batch.items() if isinstance(value, np.ndarray)}


@pytest.mark.parametrize("rounding", ["nearest", "floor", "ceil"])
def test_no_frame_passes_for_one_that_was_missed(manifest, slots, rounding):
    anchors, masked = [], 0
    for anchor, sample in loaded(manifest, delta_rounding=rounding, pad_missing=True):
        anchors.append(anchor)
        wanted = [resolved(slots, anchor, offset, rounding) for offset in OFFSETS]
        for key in ("rgb_cam_0", "state"):
            assert sample[f"{key}_valid_mask"].tolist() == [there for _, there in wanted], (key, anchor)
        for at, (frame, there) in enumerate(wanted):
            if there:
                assert read_stamp(sample["rgb_cam_0"][at]) == (0, 0, frame), (anchor, OFFSETS[at])
                assert sample["state"][at][1] == frame
            else:
                masked += slots[0] < slots[anchor] + OFFSETS[at] < slots[-1]
    assert anchors == list(range(len(slots)))
    assert masked or (rounding == "nearest" and len(slots) == SLOTS - 1)  # one slot: a neighbour is never further


@pytest.mark.parametrize("rounding", ["nearest", "floor", "ceil"])
def test_without_padding_windows_into_a_gap_are_no_samples(manifest, slots, rounding):
    whole = [
        anchor
        for anchor in range(len(slots))
        if all(resolved(slots, anchor, offset, rounding)[1] for offset in OFFSETS) and anchor + 4 <= len(slots)
    ]
    assert [anchor for anchor, _ in loaded(manifest, delta_rounding=rounding)] == whole
    assert whole


@pytest.mark.parametrize("rounding", ["nearest", "floor", "ceil"])
def test_with_lerobots_keys_what_was_missed_is_padding(manifest, slots, rounding):
    torch = pytest.importorskip("torch")
    from knonik_loader.torch import KhlpDataset

    deltas = {"observation.state": [float(offset / FPS) for offset in OFFSETS]}
    dataset = KhlpDataset(manifest, keys="lerobot", delta_timestamps=deltas, delta_rounding=rounding)
    assert len(dataset) == len(slots)
    for anchor in range(len(slots)):
        sample = dataset[anchor]
        wanted = [resolved(slots, anchor, offset, rounding) for offset in OFFSETS]
        there = torch.tensor([one for _, one in wanted])
        assert torch.equal(sample["observation.state_is_pad"], ~there)
        frames = torch.tensor([float(frame) for frame, _ in wanted])
        assert torch.equal(sample["observation.state"][:, 1][there], frames[there])


def test_there_is_no_tolerance_to_be_raised(manifest):
    """It would let neighbours in; what is near is fixed, and a key that promised otherwise is no key."""
    with pytest.raises(ConfigError, match="tolerance_s"):
        ShardedDataLoader(loader_config(manifest, tolerance_s=1 / FPS))
    pytest.importorskip("torch")
    from knonik_loader.torch import KhlpDataset

    with pytest.raises(ConfigError, match="tolerance_s"):
        KhlpDataset(manifest, tolerance_s=1 / FPS)


def test_how_near_is_near_follows_from_the_recordings_own_rate(tmp_path):
    """A rate that nobody states is no 30: at 50 Hz a frame 1.4 periods away would count as near."""
    slots = np.delete(np.arange(SLOTS), [13])
    arrays = episode_arrays(0, len(slots), cameras=1)
    streams = {name: arrays[name] for name in ("cam_0", "state", "action")}
    write_hdf5(tmp_path / "raw" / "episode_0.hdf5", timestamps=slots / 50, **streams)
    assert detect(tmp_path / "raw").config["fps"] == 50
    config = {"dir_type": "episodic", "data_type": "hdf5", "preset": {"rgb": {"codec": "jpeg", "quality": 95}}}
    (written,) = run(config, tmp_path / "raw", tmp_path / "out", engine="inline").written
    assert any("50 is its usual one" in text for text in written.warnings)
    manifest = pack(tmp_path / "out", tmp_path / "packed", "missed", 8, 2, storage_profile="training_fast")[0]
    deltas = {"cam_0": [0.4 / 50, 1.4 / 50, 2.4 / 50]}
    keys = {"delta_timestamps": deltas, "delta_rounding": "floor", "pad_missing": True, "shuffle_mode": "none"}
    with ShardedDataLoader(loader_config(manifest, **keys)) as loader:
        for batch in loader:
            for anchor, mask in zip(
                batch["_frame_indices"].tolist(), batch["rgb_cam_0_valid_mask"].tolist(), strict=True
            ):
                asked = slots[anchor] + np.array([0.4, 1.4, 2.4])
                before = [max(slot for slot in slots if slot <= one) for one in asked]
                assert mask == [bool(one - slot <= 1) for one, slot in zip(asked, before, strict=True)]
