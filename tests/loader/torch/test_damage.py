"""One bad frame in the middle of a shard costs the items that need it: no stream ends there, and nothing is lost unseen."""

import shutil

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from knonik_loader.errors import ChecksumError
from knonik_loader.torch import KhlpDataset, KhlpIterableDataset
from tests.support.damage import flip_byte, needs
from tests.support.packed import Packed, check_frames
from tests.support.torching import samples

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

BAD = 22
"""A frame of episode 0, whose second shard holds frames 16 to 31."""


@pytest.fixture
def damaged(every_profile, tmp_path) -> Packed:
    shutil.copytree(every_profile.folder, tmp_path / "copy")
    packed = Packed(
        tmp_path / "copy" / "hlp_manifest.json", every_profile.lengths, every_profile.times, every_profile.fps
    )
    flip_byte(packed, "rgb_cam_1", 0, BAD)
    return packed


def drain(items) -> tuple[list, list]:
    """What an iterator gives when its errors are passed over, as by a loop that counts bad batches."""
    iterator, good, errors = iter(items), [], []
    while True:
        try:
            good.append(next(iterator))
        except StopIteration:
            return good, errors
        except ChecksumError as error:
            errors.append(error)


def given(iterator) -> dict | None:
    """The next item; None where it has the bad frame."""
    try:
        return next(iterator)
    except ChecksumError:
        return None


def every(packed):
    return {(f"episode_{row:06d}", frame) for row, length in enumerate(packed.lengths) for frame in range(length)}


def check(packed, batches):
    for batch in batches:
        anchors = np.asarray(batch["_frame_indices"])[:, None]
        check_frames(packed, batch, dict.fromkeys(("rgb_cam_0", "rgb_cam_1", "state"), anchors))


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_stream_of_batches_goes_on_behind_a_bad_one(damaged, workers, shuffle):
    lost = {("episode_000000", frame) for frame in needs(damaged, "rgb_cam_1", 0, BAD)}
    dataset = KhlpIterableDataset(damaged.manifest, batch_size=4, rank=0, world_size=1, shuffle=shuffle)
    planned = [dataset.opened.sampler.batch(0, step) for step in range(len(dataset))]
    wanted = [
        [
            (f"episode_{row:06d}", frame)
            for row, frame in zip(plan.episodes.tolist(), plan.anchors.tolist(), strict=True)
        ]
        for plan in planned
    ]
    batches, errors = drain(DataLoader(dataset, batch_size=None, num_workers=workers))
    assert [list(samples([batch])) for batch in batches] == [batch for batch in wanted if not lost & set(batch)]
    assert len(errors) == len(wanted) - len(batches) > 0
    assert all(f"'rgb_cam_1', frame {BAD}" in str(error) for error in errors)
    check(damaged, batches)
    again, errors = drain(DataLoader(dataset, batch_size=None, num_workers=workers))  # the next epoch
    assert len(again) + len(errors) == len(dataset)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_of_samples_goes_on_behind_a_bad_one(damaged, workers):
    lost = {("episode_000000", frame) for frame in needs(damaged, "rgb_cam_1", 0, BAD)}
    dataset = KhlpIterableDataset(damaged.manifest, rank=0, world_size=1)
    items, errors = drain(DataLoader(dataset, batch_size=None, num_workers=workers))
    seen = [(item["_episode_ids"], int(item["_frame_indices"])) for item in items]
    assert len(seen) == len(set(seen))
    assert set(seen) == every(damaged) - lost
    assert len(errors) == len(lost)


@pytest.mark.parametrize("workers", [0, 2])
def test_planned_batches_that_the_dataloader_collates_stay_whole(damaged, workers):
    """An error never leaves a part of its batch behind for the next one: batches stay those that were planned."""
    lost = {("episode_000000", frame) for frame in needs(damaged, "rgb_cam_1", 0, BAD)}
    dataset = KhlpIterableDataset(damaged.manifest, batch_size=4, batched=False, rank=0, world_size=1)
    planned = [dataset.opened.sampler.batch(0, step) for step in range(len(dataset) // 4)]
    wanted = [
        [
            (f"episode_{row:06d}", frame)
            for row, frame in zip(plan.episodes.tolist(), plan.anchors.tolist(), strict=True)
        ]
        for plan in planned
    ]
    batches, errors = drain(DataLoader(dataset, batch_size=4, num_workers=workers))
    good = [batch for batch in wanted if not lost & set(batch)]
    assert [list(samples([batch])) for batch in batches][: len(good)] == good
    assert errors


def test_a_state_after_an_error_goes_on_behind_it(damaged):
    dataset = KhlpIterableDataset(damaged.manifest, batch_size=4, rank=0, world_size=1, shuffle=False)
    iterator = iter(dataset)
    before = next(step for step in range(len(dataset)) if not given(iterator))
    assert dataset.state_dict()["step"] == before
    bad = next(count for count in range(1, 9) if (after := given(iterator)))
    step = dataset.state_dict()["step"]
    assert step == before + bad + 1
    other = KhlpIterableDataset(damaged.manifest, batch_size=4, rank=0, world_size=1, shuffle=False)
    other.load_state_dict({**dataset.state_dict(), "step": step - 1})
    assert torch.equal(next(iter(other))["_frame_indices"], after["_frame_indices"])


@pytest.mark.parametrize("workers", [0, 2])
def test_items_beside_a_bad_one_are_read(damaged, workers):
    lost = needs(damaged, "rgb_cam_1", 0, BAD)
    dataset = KhlpDataset(damaged.manifest)
    order = [[row] for row in range(len(dataset))]
    batches, errors = drain(DataLoader(dataset, batch_sampler=order, num_workers=workers))
    assert set(samples(batches)) == every(damaged) - {("episode_000000", frame) for frame in lost}
    assert len(errors) == len(lost)
    check(damaged, batches)
