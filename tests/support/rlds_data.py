"""TFDS-style datasets: tf.train.Example by Google's protobuf, framing by hand with Google's CRC-32C."""

import json
import struct
from pathlib import Path

import google_crc32c
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tests.support.stamps import episode_arrays


def _messages():
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tensorflow", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto

    def message(name, *fields):
        made = file.message_type.add(name=name)
        for number, (label, kind, own, type_name) in enumerate(fields, 1):
            made.field.add(name=own, number=number, label=label, type=kind, type_name=type_name)
        return made

    many, one = field.LABEL_REPEATED, field.LABEL_OPTIONAL
    message("BytesList", (many, field.TYPE_BYTES, "value", None))
    message("FloatList", (many, field.TYPE_FLOAT, "value", None))
    message("Int64List", (many, field.TYPE_INT64, "value", None))
    feature = message(
        "Feature",
        *(
            (one, field.TYPE_MESSAGE, f"{kind}_list", f".tensorflow.{kind.capitalize()}List")
            for kind in ("bytes", "float", "int64")
        ),
    )
    feature.oneof_decl.add(name="kind")
    for entry in feature.field:
        entry.oneof_index = 0
    features = message("Features", (many, field.TYPE_MESSAGE, "feature", ".tensorflow.Features.FeatureEntry"))
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=one, type=field.TYPE_STRING)
    entry.field.add(name="value", number=2, label=one, type=field.TYPE_MESSAGE, type_name=".tensorflow.Feature")
    message("Example", (one, field.TYPE_MESSAGE, "features", ".tensorflow.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


Example = _messages()


def example(leaves) -> bytes:
    """Leaves by name: lists of bytes, of floats or of integers."""
    made = Example()
    for name, values in leaves.items():
        feature = made.features.feature[name]
        values = list(values)
        if values and isinstance(values[0], bytes):
            feature.bytes_list.value.extend(values)
        elif values and isinstance(values[0], float):
            feature.float_list.value.extend(values)
        else:
            feature.int64_list.value.extend(int(value) for value in values)
    return made.SerializeToString()


def framed(message: bytes) -> bytes:
    def masked(data):
        crc = google_crc32c.value(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(message))
    return length + masked(length) + message + masked(message)


def tensor(dtype, *sides, encoding="none"):
    shape = {"dimensions": [str(side) for side in sides]} if sides else {}
    return {"tensor": {"shape": shape, "dtype": dtype, "encoding": encoding}}


def image(*sides, dtype="uint8", form="png"):
    return {"image": {"shape": {"dimensions": [str(side) for side in sides]}, "dtype": dtype, "encodingFormat": form}}


def features(**children):
    return {
        "pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
        "featuresDict": {"features": children},
    }


def sequence(feature):
    return {"sequence": {"feature": feature, "length": "-1"}}


TEXT = {"text": {}}
STEP = {
    "observation": features(
        front=image(96, 112, 3),
        side=image(96, 112, 3, form="jpeg"),
        state=tensor("float64", 4),
        near=image(16, 16, 1, dtype="uint16"),
    ),
    "action": tensor("float32", 4),
    "reward": tensor("float32"),
    "is_first": tensor("bool"),
    "is_last": tensor("bool"),
    "language_instruction": TEXT,
}


def step_leaves(number: int, rows: int, encode_png, encode_jpeg, near) -> dict:
    found = episode_arrays(number, rows)
    return {
        "steps/observation/front": [encode_png(picture) for picture in found["cam_0"]],
        "steps/observation/side": [encode_jpeg(picture) for picture in found["cam_1"]],
        "steps/observation/near": [encode_png(picture) for picture in near],
        "steps/observation/state": [float(value) for value in found["state"].ravel()],
        "steps/action": [float(value) for value in found["action"].ravel()],
        "steps/reward": [0.0] * rows,
        "steps/is_first": [1, *[0] * (rows - 1)],
        "steps/is_last": [*[0] * (rows - 1), 1],
        "steps/language_instruction": [f"do {number}".encode()] * rows,
        "episode_metadata/file_path": [f"/raw/{number}".encode()],
        "episode_metadata/success": [number % 2],
    }


def dataset(root: Path, shards, step=STEP, name="robot", split="train", metadata=None, info=True) -> Path:
    """One version of a dataset: ``shards`` is a list of lists of leaves."""
    home = root / name / "1.0.0"
    home.mkdir(parents=True, exist_ok=True)
    known = {"file_path": TEXT, "success": tensor("bool")} if metadata is None else metadata
    described = features(steps=sequence(features(**step)), episode_metadata=features(**known))
    (home / "features.json").write_text(json.dumps(described))
    for place, records in enumerate(shards):
        path = home / f"{name}-{split}.tfrecord-{place:05d}-of-{len(shards):05d}"
        path.write_bytes(b"".join(framed(example(leaves)) for leaves in records))
    if info:
        lengths = [str(len(records)) for records in shards]
        template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
        splits = [{"name": split, "shardLengths": lengths, "numBytes": "1", "filepathTemplate": template}]
        path = home / "dataset_info.json"
        if path.exists():
            splits = [*json.loads(path.read_text())["splits"], *splits]
        path.write_text(json.dumps({"name": name, "version": "1.0.0", "fileFormat": "tfrecord", "splits": splits}))
    return home
