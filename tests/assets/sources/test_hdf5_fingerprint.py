"""Fingerprints of HDF5 datasets stored in chunks."""

import hashlib

import h5py

from knonik_assets.sources.hdf5_streams import hash_dataset


def digest_of(path, written):
    """Digest of a (4, 2) dataset in which only one row was ever written."""
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("a", (4, 2), "f4", chunks=(1, 2))
        dataset[written] = (3, 4)
    digest = hashlib.sha256()
    with h5py.File(path) as file:
        hash_dataset(file["a"], digest, str(path))
    return digest.hexdigest()


def test_where_a_chunk_lies_counts(tmp_path):
    """The same bytes in another row are other content, although the rows around were never stored."""
    digests = [digest_of(tmp_path / f"{row}.hdf5", row) for row in (0, 1, 3)]
    assert len(set(digests)) == 3
    assert digest_of(tmp_path / "again.hdf5", 1) == digests[1]
