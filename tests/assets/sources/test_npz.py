"""Archives of arrays, one an episode, written by NumPy."""

import io
import zipfile

import numpy as np
import pytest

from knonik_assets.sources.base_contract import Expected, SourceContract
from knonik_assets.sources.detect import detect
from knonik_loader.errors import EpisodeError, SourceError
from tests.assets.sources.support import frames, jpeg, only_episode, padded_rows, source
from tests.support.calvin_data import calvin
from tests.support.stamps import episode_arrays, read_stamp
from tests.support.zarr_data import near_depth

ROWS = 5
LAYOUT = {
    "images": {"front": "observations/images/front", "side": "observations.images.side"},
    "depth": {"near": "near"},
    "numeric": {"state": "state", "action": "action"},
    "timestamps": "t",
}


def identities(pictures):
    return [read_stamp(picture) for picture in pictures]


def rows_of(number):
    return ROWS + number % 3


def write(path, number, save=np.savez_compressed, **more):
    found = episode_arrays(number, rows_of(number))
    path.parent.mkdir(parents=True, exist_ok=True)
    save(
        path,
        **{
            "observations/images/front": found["cam_0"],
            "observations/images/side": np.asfortranarray(found["cam_1"]),
            "near": near_depth(rows_of(number), number),
            "state": np.asfortranarray(found["state"].astype(">f8")),
            "action": found["action"],
            "t": found["timestamps"],
            "language_instruction": np.array(f"do {number}"),
            "fps": np.array(30),
        },
        **more,
    )
    return path


class NpzPerEpisode(SourceContract):
    save = staticmethod(np.savez_compressed)

    def make_data(self, folder):
        for number in range(11):
            write(folder / f"episode_{number}.npz", number, self.save)
        return folder

    def make_source(self, root):
        return source(root, data_type="npy", layout=LAYOUT)

    def expected(self):
        def one(number):
            found = episode_arrays(number, rows_of(number))
            return Expected(
                numeric={"state": found["state"], "action": found["action"]},
                pictures={"front": found["cam_0"], "side": found["cam_1"]},
                depth={"near": near_depth(rows_of(number), number).astype(np.float32) / np.float32(1000)},
                tolerance=1e-6,
                timestamps=found["timestamps"],
                instruction=f"do {number}",
            )

        return {f"episode_{number}": one(number) for number in range(11)}

    def change(self, root, source_id):
        with np.load(root / f"{source_id}.npz") as archive:
            arrays = dict(archive)
        arrays["action"][2, 1] += 1
        self.save(root / f"{source_id}.npz", **arrays)


class TestCompressed(NpzPerEpisode):
    pass


class TestStored(NpzPerEpisode):
    save = staticmethod(np.savez)


def test_everything_is_taken_without_a_layout(tmp_path):
    write(tmp_path / "episode_0.npz", 0, extra=np.array([{"a": 1}], object))
    with only_episode(tmp_path, data_type="npy") as opened:
        assert [(spec.kind, spec.name, spec.fps) for spec in opened.streams] == [
            ("numeric", "action", 30),
            ("depth", "near", 30),
            ("rgb", "front", 30),
            ("rgb", "side", 30),
            ("numeric", "state", 30),
            ("numeric", "t", 30),
        ]


def test_encoded_pictures(tmp_path):
    known = episode_arrays(3, ROWS)
    rows = padded_rows([jpeg(picture) for picture in known["cam_0"]])
    np.savez(tmp_path / "episode_0.npz", cam=rows, texts=np.array([jpeg(one) for one in known["cam_1"]], "S40000"))
    with only_episode(tmp_path, data_type="npy") as opened:
        assert {spec.encoding for spec in opened.streams} == {"jpeg"}
        assert [frame.data for frame in frames(opened, "cam")] == [jpeg(picture) for picture in known["cam_0"]]
        assert [frame.data for frame in frames(opened, "texts")] == [jpeg(picture) for picture in known["cam_1"]]


class Trap:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_pickled_objects_are_never_loaded(tmp_path):
    trap = np.array([Trap(str(tmp_path / "ran"))] * ROWS, object)
    write(tmp_path / "episode_0.npz", 0, trap=trap)
    with only_episode(tmp_path, data_type="npy") as opened:
        assert any("trap (object" in text for text in opened.facts.warnings)
    with pytest.raises(SourceError, match="trap is listed as numeric but holds object"):
        only_episode(tmp_path, data_type="npy", layout={"numeric": {"trap": "trap"}})
    assert not (tmp_path / "ran").exists()


def test_calvin_steps_are_no_episodes(tmp_path):
    calvin(tmp_path / "with", [(100, 103)])
    with pytest.raises(SourceError, match='"dir_type": "calvin"'):
        source(tmp_path / "with", data_type="npy").episodes()
    (tmp_path / "with" / "ep_start_end_ids.npy").unlink()
    with pytest.raises(SourceError, match='"dir_type": "calvin"'):
        source(tmp_path / "with", data_type="npy").episodes()


def test_seven_digits_alone_are_no_calvin(tmp_path):
    write(tmp_path / "episode_0000007.npz", 0)
    assert [ref.source_id for ref in source(tmp_path, data_type="npy").episodes()] == ["episode_0000007"]


def test_folders_without_archives(tmp_path):
    with pytest.raises(SourceError, match="no such folder"):
        source(tmp_path / "absent", data_type="npy").episodes()
    write(tmp_path / "run_0.npz", 0)
    with pytest.raises(SourceError, match=r"it has run_0\.npz …; rename"):
        source(tmp_path, data_type="npy").episodes()
    with pytest.raises(SourceError, match="is a file"):
        source(tmp_path / "run_0.npz", data_type="npy").episodes()


@pytest.mark.parametrize("share", [0.0, 0.01, 0.6, 0.99])
def test_a_cut_archive_fails_by_name_and_alone(tmp_path, share):
    for number in range(2):
        write(tmp_path / f"episode_{number}.npz", number)
    victim = tmp_path / "episode_0.npz"
    victim.write_bytes(victim.read_bytes()[: int(victim.stat().st_size * share)])
    found = source(tmp_path, data_type="npy")
    refs = found.episodes()
    with pytest.raises(EpisodeError, match=r"episode_0\.npz"):
        found.open(refs[0])
    with found.open(refs[1]) as opened:
        assert len(frames(opened, "front")) == rows_of(1)


def test_a_flipped_byte_is_found_by_the_check_sum(tmp_path):
    path = write(tmp_path / "episode_0.npz", 0, np.savez)
    with zipfile.ZipFile(path) as archive:
        at = archive.getinfo("observations/images/front.npy").header_offset
    data = bytearray(path.read_bytes())
    data[at + 5000] ^= 1
    path.write_bytes(data)
    with only_episode(tmp_path, data_type="npy") as opened, pytest.raises(EpisodeError, match="CRC"):
        frames(opened, "front")


def npy_bytes(header: str) -> bytes:
    text = header.encode() + b" " * (118 - len(header) - 1) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + b"\0" * 64


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 4), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 4), }",
        "{'descr': '<q9', 'fortran_order': False, 'shape': (1, 4), }",
        "__import__('os').abort()",
    ],
)
def test_absurd_headers_take_no_memory(tmp_path, header):
    with zipfile.ZipFile(tmp_path / "episode_0.npz", "w") as archive:
        archive.writestr("action.npy", npy_bytes(header))
    with pytest.raises(EpisodeError, match="action"):
        only_episode(tmp_path, data_type="npy")


def test_members_are_names_not_paths(tmp_path):
    known = episode_arrays(0, ROWS)
    buffer = io.BytesIO()
    np.save(buffer, known["action"])
    with zipfile.ZipFile(tmp_path / "episode_0.npz", "w") as archive:
        archive.writestr("../../action.npy", buffer.getvalue())
    with only_episode(tmp_path, data_type="npy") as opened:
        assert [spec.name for spec in opened.streams] == ["action"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["episode_0.npz"]


def test_archives_are_recognised(tmp_path):
    for number in (2, 10):
        write(tmp_path / f"episode_{number}.npz", number)
    found = detect(tmp_path)
    assert (found.dir_type, found.data_type, found.episodes, found.language) == ("episodic", "npy", 2, "do 2")
    assert found.config["layout"]["images"]["front"] == {"key": "observations.images.front"}
