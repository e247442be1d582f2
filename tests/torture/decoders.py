"""Decoders of records that mean harm: tf.train.Example, beside protobuf itself, and the members of tars."""

import json
from contextlib import suppress

import numpy as np
from google.protobuf.unknown_fields import UnknownFieldSet
from tfrecord import example_pb2

from mmapds.dataset.catalog import Location
from mmapds.dataset.payloads import sample_of, tf_example
from tests.support.samples import npy, npz
from tests.support.tars import archive
from tests.support.torture import repeat
from tests.torture.hostile_sources import damaged, sealed

RECORDS = 300
"""In a case."""


def example(random):
    """A tf.train.Example as protobuf writes it."""
    features = {}
    for name in random.sample(["a", "b", "é", "", "x" * 200], random.randrange(5)):
        feature = features[name] = example_pb2.Feature()
        kind = random.choice([feature.bytes_list, feature.float_list, feature.int64_list, None])
        if kind is not None:
            kind.SetInParent()
            made = {"BytesList": lambda: b"x" * random.randrange(9), "FloatList": random.random}
            number = made.get(type(kind).__name__, lambda: random.choice([-1, 0, 1, 300, 2**63 - 1, -(2**63)]))
            kind.value.extend(number() for _ in range(random.randrange(5)))
    return example_pb2.Example(features=example_pb2.Features(feature=features)).SerializeToString()


def by_protobuf(data):
    """What protobuf finds, as lists; None if it refuses some of the bytes, or does not know what they are."""
    try:
        features = example_pb2.Example.FromString(data).features
    except Exception:  # whatever protobuf raises
        return None
    if len(UnknownFieldSet(features)):  # among these are entries of the map that have more than a key and a value
        return None
    found = features.feature
    kinds = {name: feature.WhichOneof("kind") for name, feature in found.items()}
    return {name: list(getattr(found[name], kind).value) if kind else [] for name, kind in kinds.items()}


def listed(value):
    """Bytes that compare also where numbers are not numbers."""
    return np.asarray(value, "<f4").tobytes() if value and isinstance(value[0], float) else list(value)


def check_example(data):
    """Decode a tf.train.Example: a ValueError, or what protobuf finds."""
    try:
        found = {name: value if isinstance(value, list) else value.tolist() for name, value in tf_example(data).items()}
    except ValueError:
        return
    wanted = by_protobuf(data)
    if wanted is not None:
        assert {name: listed(value) for name, value in found.items()} == {
            name: listed(value) for name, value in wanted.items()
        }


def check_members(record):
    """Decode a sample of a tar: a ValueError, or a dict."""
    with suppress(ValueError):
        assert isinstance(sample_of(memoryview(record), Location("a.tar", 0, 0)), dict)


def one(random):
    array = np.arange(6, dtype=">i2").reshape(2, 3)
    members = [("a.npy", npy(array)), ("a.npz", npz(x=array)), ("a.json", json.dumps({"a": [1]}).encode())]
    members += [("a.txt", b"text"), ("a.cls", b"12"), ("a.s.id", b"-3")]
    for _ in range(RECORDS):
        data = damaged(random, example(random))
        chosen = [(name, damaged(random, content)) for name, content in members if random.random() < 0.4]
        record = archive(chosen or members[:1], random.choice(["ustar", "pax", "gnu"]))
        record = record[: -(-len(record.rstrip(b"\0")) // 512) * 512]
        if random.random() < 0.5:
            record = sealed("tar", damaged(random, record))
        for check, content in ((check_example, data), (check_members, record)):
            try:
                check(content)
            except Exception as error:
                raise AssertionError(f"{check.__name__}({content!r}): {error!r}") from error


def run(seconds, seed):
    """Decode until the time is over; see tests/support/torture.py."""
    return f"{2 * RECORDS * repeat(one, seconds, seed):,} hostile records: a ValueError, or what stands there"
