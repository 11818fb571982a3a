import numpy as np
import pytest

from knonik_loader import ShardedDataLoader
from knonik_loader.engine.memory import ReadBuffers, RecyclingPool, SlotRing
from tests.support.packed import check_frames

SHAPE = (4, 64, 64)


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_comes_back_when_the_last_view_is_gone():
    pool = RecyclingPool(4)
    array = pool.take(0, "x", SHAPE, "uint8")
    first = address(array)
    view = array[1:2, ::2].T
    del array
    assert address(pool.take(1, "x", SHAPE, "uint8")) != first
    export = memoryview(view)
    del view
    assert address(pool.take(2, "x", SHAPE, "uint8")) != first
    del export
    seen = {address(array) for array in [pool.take(turn, "x", SHAPE, "uint8") for turn in range(4)]}
    assert first in seen


def test_what_a_user_keeps_is_never_written_again():
    pool = RecyclingPool(2)
    kept = []
    for turn in range(20):
        array = pool.take(turn, "x", SHAPE, "uint8")
        array[...] = turn
        kept.append(array)
    assert [int(array.min()) for array in kept] == [int(array.max()) for array in kept] == list(range(20))
    assert pool.counts()["bytes"] == 2 * 4 * 64 * 64


def test_other_types_and_sizes_are_aligned_and_whole():
    pool = RecyclingPool(2)
    for dtype in ("uint8", "float32", "float64"):
        array = pool.take(0, "x", (3, 1001), dtype)
        assert array.shape == (3, 1001)
        assert array.dtype == dtype
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert array.flags.aligned
    assert pool.take(0, "x", (0, 5), "uint8").shape == (0, 5)


def test_a_ring_gives_each_turn_its_slot():
    ring = SlotRing(3, poison=True)
    arrays = [ring.take(turn, "x", SHAPE, "uint8") for turn in range(4)]
    assert address(arrays[3]) == address(arrays[0])
    assert len({address(array) for array in arrays[:3]}) == 3
    arrays[0][...] = 1
    ring.take(6, "x", SHAPE, "uint8")
    assert (arrays[0] == 0xAB).all()
    assert address(ring.take(0, "y", SHAPE, "uint8")) != address(arrays[0])


def test_a_loop_that_keeps_nothing_reuses_its_memory(packed):
    with ShardedDataLoader(packed.config(precollate_batches=2)) as loader:
        for _ in range(4):
            for _ in loader:
                pass
        counts = loader.stats()["memory"]
    assert counts["fresh"] < 40
    assert counts["reused"] > 2 * counts["fresh"]


def test_batches_that_are_kept_stay_as_they_were(packed):
    with ShardedDataLoader(packed.config(precollate_batches=8)) as loader:
        batches = [batch | {"copy": batch["rgb_cam_0"].copy()} for batch in loader]
    for batch in batches:
        np.testing.assert_array_equal(batch["rgb_cam_0"], batch["copy"])


def zerocopy(packed, **keys):
    shapes = {"cam_0": [80, 80, 3], "cam_1": [80, 80, 3]}
    return packed.config(zerocopy=True, zerocopy_frame_shapes=shapes, drop_last=True, **keys)


@pytest.mark.parametrize(
    ("keys", "valid"),
    [
        ({}, 2),
        ({"precollate_batches": 0}, 2),
        ({"zerocopy_slots": 7, "partial_decode_coalesce_batches": 3, "partial_decode_window_prefetch": 2}, 5),
        ({"low_memory": True, "framework": "torch"}, 2),
    ],
)
def test_zerocopy_batches_live_as_long_as_promised(packed, monkeypatch, keys, valid):
    monkeypatch.setenv("KNONIK_POISON", "1")
    with ShardedDataLoader(packed.config(drop_last=True)) as loader:
        expected = [batch["rgb_cam_0"].copy() for batch in loader]
    with ShardedDataLoader(zerocopy(packed, **keys)) as loader:
        held, places = [], set()
        for batch, wanted in zip(loader, expected, strict=True):
            held.append((np.asarray(batch["rgb_cam_0"]), wanted))
            places.add(address(held[-1][0]))
            for array, content in held[-valid:]:
                np.testing.assert_array_equal(array, content)
        assert len(places) < 14 < len(expected)
        # the next pass doesn't write into what this one gave
        for batch, _ in zip(loader, range(3), strict=False):
            assert batch["state"].shape == (4, 4, 4)
        np.testing.assert_array_equal(held[-1][0], held[-1][1])


def test_zerocopy_with_some_of_the_cameras(packed):
    config = packed.config(zerocopy=True, zerocopy_frame_shapes={"cam_1": [80, 80, 3]})
    with ShardedDataLoader(config, {"cam_1": {}, "state": {}}) as loader:
        assert next(iter(loader))["_stream_names"] == ["rgb_cam_1", "state"]


def test_pinned_memory_is_reused_by_torch_alone(packed, monkeypatch):
    """A copy to a device reads on when nobody refers to the tensor any more; only PyTorch's own pool knows of it."""
    torch = pytest.importorskip("torch")
    made = []
    empty = torch.empty

    def pinned(*shape, pin_memory, **options):
        assert pin_memory
        made.append(empty(*shape, **options))
        return made[-1]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", pinned)
    with ShardedDataLoader(packed.config(framework="torch", pin_memory=True)) as loader:
        assert loader.stats()["inactive"] == []
        batches = 0
        for batch in loader:
            batches += 1
            for key in batch["_stream_names"]:
                assert batch[key].untyped_storage()._cdata in {tensor.untyped_storage()._cdata for tensor in made}, key
            anchors = batch["_frame_indices"].numpy()[:, None]
            check_frames(packed, batch, {key: anchors + np.arange(4) for key in batch["_stream_names"]})
        assert len(made) == batches * len(batch["_stream_names"])


class TestReadBuffers:
    SIZE = ReadBuffers.SMALLEST

    def test_a_buffer_is_used_again_once_no_part_of_it_is_looked_at(self):
        buffers = ReadBuffers(4 * self.SIZE)
        view = buffers.take(self.SIZE)
        part = np.frombuffer(buffers.take(self.SIZE)[100:200], np.uint8)
        first, second = address(np.asarray(view)), address(part) - 100
        del view
        assert address(np.asarray(buffers.take(self.SIZE))) == first
        held = [buffers.take(self.SIZE) for _ in range(3)]
        assert second not in {address(np.asarray(one)) for one in held}

    def test_what_is_read_beyond_the_limit_is_whole_all_the_same(self):
        buffers = ReadBuffers(2 * self.SIZE)
        views = [buffers.take(self.SIZE) for _ in range(5)]
        for number, view in enumerate(views):
            view[:] = bytes([number]) * self.SIZE
        assert [set(view.tobytes()) for view in views] == [{number} for number in range(5)]
        assert buffers._held == 2 * self.SIZE

    def test_idle_buffers_make_room_for_another_size(self):
        buffers = ReadBuffers(2 * self.SIZE)
        kept = [buffers.take(self.SIZE), buffers.take(self.SIZE)]
        del kept
        large = buffers.take(2 * self.SIZE)
        first = address(np.asarray(large))
        del large
        assert address(np.asarray(buffers.take(2 * self.SIZE))) == first
        assert len(buffers.take(1)) == 1
