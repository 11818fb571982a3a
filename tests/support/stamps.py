"""Frames that say who they are: camera, episode and frame number as black and white blocks in the upper half.

40 bits in 5 rows of 8 blocks: camera (4), episode (12), frame (12) and a 12-bit check; three colour patches below show
exchanged channels and turned pictures. The blocks are large enough to survive every codec at a sane quality.
"""

import numpy as np

PATCHES = np.array([(220, 40, 40), (40, 200, 60), (50, 70, 220)], np.uint8)


def _code(camera: int, episode: int, frame: int) -> np.ndarray:
    """(5, 8) booleans of a stamp."""
    word = camera << 24 | episode << 12 | frame
    word = word << 12 | (word * 2654435761 >> 13 & 0xFFF)
    return np.array([word >> shift & 1 for shift in range(39, -1, -1)], bool).reshape(5, 8)


def stamp(image: np.ndarray, camera: int, episode: int, frame: int) -> np.ndarray:
    """Burn an identity into (H, W, 3) uint8, in place; H and W of at least 80."""
    assert camera < 16
    assert episode < 4096
    assert frame < 4096
    height, width, _ = image.shape
    tall, wide = height // 2 // 5, width // 8
    blocks = np.where(_code(camera, episode, frame), 235, 20).astype(np.uint8)
    image[: 5 * tall, : 8 * wide] = blocks.repeat(tall, 0).repeat(wide, 1)[..., None]
    top = 5 * tall + tall // 2
    for index, colour in enumerate(PATCHES):
        image[top : top + wide, 2 * index * wide : (2 * index + 1) * wide] = colour
    return image


def read_stamp(image: np.ndarray) -> tuple[int, int, int]:
    """(camera, episode, frame); fails when the check bits or a patch's colour are wrong."""
    image = np.asarray(image)
    height, width, _ = image.shape
    tall, wide = height // 2 // 5, width // 8
    cells = image[: 5 * tall, : 8 * wide].reshape(5, tall, 8, wide, 3)
    inner = cells[:, tall // 4 : tall - tall // 4, :, wide // 4 : wide - wide // 4]
    bits = inner.mean((1, 3, 4)) > 127.5
    word = int("".join("1" if bit else "0" for bit in bits.ravel()), 2)
    camera, episode, frame = word >> 36 & 0xF, word >> 24 & 0xFFF, word >> 12 & 0xFFF
    assert (bits == _code(camera, episode, frame)).all(), f"unreadable stamp {word:040b}"
    top, edge = 5 * tall + tall // 2, wide // 4
    for index, colour in enumerate(PATCHES):
        left = 2 * index * wide
        patch = image[top + edge : top + wide - edge, left + edge : left + wide - edge].reshape(-1, 3).mean(0)
        assert np.abs(patch - colour).max() <= 40, f"patch {index} is {patch.round()}, wanted {colour}"
    return camera, episode, frame


def episode_arrays(
    episode: int, frames: int, cameras: int = 2, height: int = 96, width: int = 112, fps: float = 30.0
) -> dict[str, np.ndarray]:
    """One episode: ``cam_<c>`` (T, H, W, 3) uint8, ``state`` and ``action`` (T, 4) float32, ``timestamps`` (T,) s.

    state[t] = (episode, t, sin, cos) and action[t] = (t, t + 1, episode, -1): a shift by one row shows at once.
    """
    rng = np.random.default_rng(1000 + episode)
    tiles = rng.integers(60, 190, (height // 8 + 1, width // 8 + 1, 3)).astype(np.uint8)
    base = tiles.repeat(8, 0).repeat(8, 1)[:height, :width]
    out: dict[str, np.ndarray] = {}
    for camera in range(cameras):
        video = np.stack([np.roll(base, (t // 3 + camera, t // 2), (0, 1)) for t in range(frames)])
        for t in range(frames):
            stamp(video[t], camera, episode, t)
        out[f"cam_{camera}"] = video
    t = np.arange(frames)
    out["state"] = np.stack([np.full(frames, episode), t, np.sin(t / 20), np.cos(t / 20)], 1).astype(np.float32)
    out["action"] = np.stack([t, t + 1, np.full(frames, episode), np.full(frames, -1)], 1).astype(np.float32)
    out["timestamps"] = t / fps
    return out
