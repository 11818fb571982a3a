"""A recording for every fault that the checks know: each is named by its own check, and by no other that it doesn't mean."""

import shutil

import numpy as np
import pytest
from PIL import Image, ImageFilter

from tests.assets.orchestration.conftest import checks_of, materialised

CARD = """
pack: {profiles: [training_compressed], shard_size: 10, seed: 1}
config: {roles: {state: pose, action: command}}
checks: {min_frames: 12, psnr_floor: {training_compressed: 90}, severity: {steady_clock: error}}
"""
FRAMES = 24


def moving(arrays):
    """Action and state that follow each other in every channel, other ones in every episode."""
    steps = np.arange(len(arrays["state"]))[:, None]
    phase = arrays["state"][0, 0]
    arrays["state"][:] = np.sin(steps / 5 + np.arange(4) + phase)
    arrays["action"][:] = arrays["state"] + 0.01


def healthy(arrays):
    del arrays


def clock_stops(arrays):
    arrays["timestamps"][10] = arrays["timestamps"][9]


def clock_leaps(arrays):
    arrays["timestamps"][12:] += 0.2


def clock_jitters(arrays):
    arrays["timestamps"] += 0.3 * (np.arange(FRAMES) % 2) / 30


def smaller(arrays):
    arrays["cam_1"] = np.ascontiguousarray(arrays["cam_1"][:, :64, :64])


def spoilt(arrays):
    arrays["state"][5, 1] = np.inf


def dead_channel(arrays):
    arrays["state"][:, 2] = np.nan


def black(arrays):
    arrays["cam_0"][:] = 3


def frozen(arrays):
    arrays["cam_1"][4:] = arrays["cam_1"][4]


def white(arrays):
    arrays["cam_0"][:, :, :80] = 255


def blurred(arrays):
    for frame in arrays["cam_1"]:
        frame[:] = np.asarray(Image.fromarray(frame).filter(ImageFilter.GaussianBlur(4)))


def stuck(arrays):
    arrays["state"][:, 2] = 0.5


def apart(arrays):
    arrays["action"][:, 3] += 0.9


def short_camera(arrays):
    arrays["cam_1"] = arrays["cam_1"][:-2]


FAULTS = {
    healthy: (set(), ""),
    clock_stops: ({"timestamps_increase", "no_gaps", "steady_clock"}, "does not advance at frame 10"),
    clock_leaps: ({"no_gaps", "steady_clock"}, "7.00 frame periods before frame 12"),
    clock_jitters: ({"steady_clock"}, "steps vary by 0.3"),
    smaller: ({"same_shape"}, "rgb_cam_1 64x64"),
    spoilt: ({"finite_values"}, "pose: 1 values that are no number, the first in row 5, channel 1"),
    dead_channel: (
        {"finite_values", "channels_alive"},
        "pose: 24 values that are no number, the first in row 0, channel 2",
    ),
    black: ({"cameras_alive", "cameras_sharp"}, "camera cam_0: the brightest pixels have luma"),
    frozen: ({"cameras_alive"}, "camera cam_1 shows one picture from frame 4 to 23 while the robot moves"),
    white: ({"cameras_lit"}, "camera cam_0: 8"),
    blurred: ({"cameras_sharp"}, "camera cam_1 has"),
    stuck: ({"channels_alive"}, "pose: channels 2 never change"),
    apart: ({"action_follows_state"}, "in channel 3"),
    short_camera: ({"no_frames_cut"}, "rgb_cam_0 by 2"),
}
REPORTED = {"no_gaps", "cameras_lit", "cameras_sharp", "channels_alive", "action_follows_state", "no_frames_cut"}
BAD = {f"episode_{number:06d}" for number, (checks, _) in enumerate(FAULTS.values()) if checks - REPORTED}


@pytest.fixture
def ill(workshop):
    workshop.card(CARD)
    for number, fault in enumerate(FAULTS):
        workshop.record(number, FRAMES, lambda arrays, fault=fault: (moving(arrays), fault(arrays)))
    short = len(FAULTS)
    workshop.record(short, 8, moving)
    shutil.copy(workshop.raw / "episode_0.hdf5", workshop.raw / f"episode_{short + 1}.hdf5")
    (workshop.raw / f"episode_{short + 2}.hdf5").write_bytes(b"\x89HDF and no more")
    return workshop


def named(result):
    """Episode → check → reason, of the checks of the episodes."""
    found = {}
    for check, one in checks_of(result)["ingested_episodes"].items():
        for record in one.metadata["details"].records if check != "fit_to_pack" and not one.passed else ():
            if record.data.get("frame") is None:  # the row of the episode; those of its frames follow
                found.setdefault(record.data["episode"], {}).setdefault(check, record.data["reason"])
    return found


def frames_named(result, check):
    """Episode → (frame, camera, reason) of its frames that a check names."""
    found = {}
    for record in checks_of(result)["ingested_episodes"][check].metadata["details"].records:
        if record.data["frame"] is not None:
            row = record.data["frame"], record.data["stream"], record.data["reason"]
            found.setdefault(record.data["episode"], []).append(row)
    return found


def test_every_fault_is_named_by_its_check(ill, instance):
    result = ill.build(instance)
    assert result.success
    found = named(result)
    for number, (fault, (checks, words)) in enumerate(FAULTS.items()):
        said = found.get(f"episode_{number:06d}", {})
        assert set(said) == checks, fault.__name__
        assert words in "; ".join(said.values()), fault.__name__
    short, copy, cut = (f"episode_{len(FAULTS) + more:06d}" for more in range(3))
    assert found[short] == {"has_frames": "frames is 8.0"}
    assert found[copy] == {"no_duplicates": "the same recording as episode_000000"}
    assert set(found[cut]) == {"every_raw_episode_present"}
    # what an error makes bad stays out of the packs, what is reported goes in: the card made jitter an error
    out = {
        record.data["episode"]
        for record in materialised(result)["khlp_training_compressed"].metadata["left_out"].records
    }
    assert out == BAD | {short, copy}
    of = {fault: f"episode_{number:06d}" for number, fault in enumerate(FAULTS)}
    assert frames_named(result, "finite_values")[of[spoilt]] == [(5, "", "pose: channel 1 is inf")]
    assert frames_named(result, "no_gaps")[of[clock_leaps]] == [(12, "", "7.00 frame periods after frame 11")]
    assert [row[:2] for row in frames_named(result, "timestamps_increase")[of[clock_stops]]] == [(10, "")]
    assert {row[1] for row in frames_named(result, "cameras_alive")[of[frozen]]} == {"rgb_cam_1"}
    assert {row[1] for row in frames_named(result, "cameras_lit")[of[white]]} == {"rgb_cam_0"}
    stuck_numbers = checks_of(result)["ingested_episodes"]["finite_values"].metadata
    assert stuck_numbers["frames_that_fail"].value == 1 + FRAMES
    rows = [row.data for row in stuck_numbers["details"].records if row.data["episode"] == of[dead_channel]]
    assert [row["frame"] for row in rows] == [None, 0, 1, 2, 3, 4, None]
    assert rows[-1]["reason"] == f"and {FRAMES - 5} frames more"
    page = (ill.episodes / "quality.html").read_text()
    assert all(name in page for name in BAD)
    assert materialised(result)["ingested_episodes"].metadata["expectations"].value == str(
        ill.episodes / "quality.html"
    )
    # pictures below the card's floor, and nothing else, are told of the packed data
    packed = checks_of(result)["khlp_training_compressed"]
    assert {check for check, one in packed.items() if not one.passed} == {"psnr"}
    assert packed["psnr"].severity.value == "WARN"
    assert "the floor is 90 dB" in packed["psnr"].description


def test_a_file_that_rots_after_ingest_is_found_by_its_checksum(workshop, instance):
    workshop.card(CARD)
    for number in range(2):
        workshop.record(number, FRAMES, moving)
    assert workshop.build(instance).success
    path = workshop.episodes / "episode_000001" / "rgb_cam_0.mkv"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    result = workshop.build(instance)
    assert named(result) == {"episode_000001": {"checksums": "rgb_cam_0.mkv differs from its checksum"}}
    assert materialised(result)["khlp_training_compressed"].metadata["episodes"].value == 1
