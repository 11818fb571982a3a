"""Functions for ``augment_fn`` that worker processes can import."""

import os
import random
import signal
import time

import numpy as np


def mirror(sample):
    """A flip, a crop of random place, a new type and a new stream."""
    rng = np.random.default_rng(sample["rng_seed"])
    streams = dict(sample["streams"])
    left = int(rng.integers(0, 8))
    streams["rgb_cam_0"] = streams["rgb_cam_0"][:, :, left : left + 64].astype(np.float32)
    streams["left"] = np.array([left])
    del streams["depth_cam_0"]
    return {**sample, "streams": streams}


def fail_at_twenty(sample):
    if sample["frame_index"] == 20:
        raise StopIteration  # would end a careless loop in silence
    return sample


def forget(sample):
    return None if sample["frame_index"] == 20 else sample


def uneven(sample):
    frames = 3 if sample["frame_index"] == 20 else 4
    return {**sample, "streams": {"state": sample["streams"]["state"][:frames]}}


def different(sample):
    extra = {"extra": np.zeros(1)} if sample["frame_index"] == 20 else {}
    return {**sample, "streams": {"state": sample["streams"]["state"], **extra}}


def streams_alone(sample):
    return {"streams": sample["streams"]}


def odd_masks(sample):
    return {**sample, "valid_masks": "all"} if sample["frame_index"] == 20 else sample


def another_mask(sample):
    extra = {"extra": np.ones(1, bool)} if sample["frame_index"] == 21 else {}
    return {**sample, "valid_masks": {**sample["valid_masks"], **extra}}


def say(sample):
    return "a sample" if sample["frame_index"] == 20 else sample


def scale(sample):
    """Tensors in, tensors of a type that numpy doesn't have out."""
    picture = sample["streams"]["rgb_cam_0"]
    assert type(picture).__name__ == "Tensor"
    return {**sample, "streams": {**sample["streams"], "rgb_cam_0": (picture.float() / 255).bfloat16()}}


def die_at_twenty(sample):
    if sample["frame_index"] == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


def exit_at_twenty(sample):
    if sample["frame_index"] == 20:
        os._exit(7)
    return sample


def sleep_long(sample):
    time.sleep(600)
    return sample


def sleep_at_twenty(sample):
    if sample["frame_index"] == 20:
        time.sleep(600)
    return sample


def grow(sample):
    """Ten times as much as came in, of another type and not contiguous."""
    picture = np.repeat(sample["streams"]["rgb_cam_0"], 5, axis=0).astype(np.float64)[:, ::-1]
    return {**sample, "streams": {**sample["streams"], "rgb_cam_0": picture}}


def draw(sample):
    """From the global generators."""
    numbers = np.array([random.random(), np.random.random()])
    return {**sample, "streams": {"state": sample["streams"]["state"], "drawn": numbers}}


def who(sample):
    return {**sample, "streams": {"state": sample["streams"]["state"], "pid": np.array([os.getpid()])}}


def unsendable(sample):
    return {**sample, "more": lambda: 0}


class Stateful:
    """A callable object."""

    def __init__(self, add):
        self.add = add

    def __call__(self, sample):
        return {**sample, "streams": {"state": sample["streams"]["state"] + self.add}}
