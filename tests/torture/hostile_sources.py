"""Sources of every format with any bytes damaged, and right checksums where the format has some.

They are refused by an error of mmapds's; else they can be indexed, --verify passes over the index, what is read is the
same in all ways to read it, and it is what a plain parser of the format finds. Of damaged text that is compressed, it
is what the plain file has.
"""

import struct
import tempfile
import warnings
from functools import partial
from pathlib import Path

import numpy as np
from xxhash import xxh3_64

import mmapds
from mmapds import _native
from tests.support.forged import (
    COMPRESSED,
    KINDS,
    NUMBERS,
    REFUSED,
    Forgery,
    attempt,
    compress,
    is_verified,
    make_content,
    make_source,
    observe,
    plain,
    small_blocks,
)
from tests.support.oracle import records as lines_of
from tests.support.tars import with_checksum
from tests.support.torture import repeat

SOURCES = 30
"""In a case, of one format."""
DECODERS = {
    "tar": ["files", "wds", "pil"],
    "tfrecord": ["tf_example", "bytes"],
    "jsonl": ["json", "text"],
    "mma": [None, "torch"],
}


def damaged(random, data):
    """Bytes with something else in some places."""
    data = bytearray(data)
    for _ in range(random.choice([1, 1, 2, 5])):
        at = random.randrange(len(data) + 1)
        width = random.choice([1, 2, 4, 8])
        number = (random.choice(NUMBERS) % 256**width).to_bytes(width, random.choice(["little", "big"]))
        where = slice(at, at + width)
        choice = random.randrange(8)
        if choice < 2 and data:
            data[at % len(data)] ^= 1 << random.randrange(8)
        elif choice < 4:
            data[where] = number
        elif choice == 4:
            data[at:at] = random.choice([number, data[at // 2 : at // 2 + random.randrange(600)], b"\n", b"\0" * 512])
        elif choice == 5:
            del data[at : at + random.choice([1, width, 64, 512])]
        elif choice == 6 and random.random() < 0.3:
            del data[at:]
        else:
            data[where] = random.choice([b"9" * width, b"-" * width, bytes(width), b'"}]{' * 2, b"[1e9" * 2])[:width]
    return bytes(data)


def masked(crc):
    """A CRC as TFRecord stores it."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def sealed(kind, data):
    """A damaged source with the checksums of its format made right."""
    if kind == "tar":
        for at in range(0, len(data) - 511, 512):
            if data[at + 257 : at + 262] == b"ustar":
                data = with_checksum(data, at)
    elif kind == "tfrecord":
        out = bytearray(data)
        at = 0
        while at + 12 <= len(out):
            size = int.from_bytes(out[at : at + 8], "little")
            out[at + 8 : at + 12] = struct.pack("<I", masked(_native.crc32c(None, 0, out[at : at + 8])))
            at += 12 + size
            if at + 4 > len(out):
                break
            out[at : at + 4] = struct.pack("<I", masked(_native.crc32c(None, 0, out[at - size : at])))
            at += 4
        data = bytes(out)
    return data


def forged_array_file(random, data):
    """An array file of which fields, numbers or bytes of the schema are others, every checksum right."""
    size = int.from_bytes(data[64:72], "little")
    text = bytearray(data[80 : 80 + size])
    if random.random() < 0.4:
        at = random.randrange(size)
        text[at] = random.choice([*b'019-[]{}n",:', text[at] ^ 1])
        data = data[:72] + struct.pack("<Q", xxh3_64(text).intdigest()) + bytes(text) + data[80 + size :]
    forgery = Forgery(data)
    for _ in range(random.choice([0, 1, 1, 2])):
        forgery.change(random)
    return forgery.bytes()


def expected(kind, path):
    """What a plain parser finds, as `observe` gives it; None where there is none."""
    data = path.read_bytes()
    if kind == "prefixed":
        found, at = [], 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "little")
            found.append(data[at + 4 : at + 4 + size])
            at += 4 + size
        return found
    if kind == "npy":
        return plain(list(np.load(path, allow_pickle=False)))
    return None


def check(kind, path, options):
    """Index a source, and read it in all ways."""
    if attempt(lambda: mmapds.build(path, force=True, **options)) is REFUSED:
        return
    found = observe(str(path))
    assert found, "cannot be opened though it was indexed just now"
    records = found["records"]
    if records is not REFUSED:
        assert found["batch"] == records[::-1]
        assert found["view"] == records[::2]
        wanted = expected(kind, path)
        assert wanted is None or records == wanted, f"expected {wanted}"
        if kind == "jsonl":
            ds = mmapds.open(path, decode="bytes")
            assert [(ds.where(i).offset, ds[i]) for i in range(len(ds))] == lines_of(path.read_bytes())
    for decode in DECODERS.get(kind, ()):
        ds = mmapds.open(path, decode=decode)
        attempt(lambda ds=ds: list(ds))
        attempt(lambda ds=ds: list(ds.take(range(len(ds)))))
    if kind not in ("mma", "tfrecord"):  # whose checksums --verify reads, too
        assert is_verified(f"{path}.mmx"), "--verify refuses an index made just now"
    else:
        is_verified(f"{path}.mmx")


def check_content(random, kind, path):
    """Damage the content of a compressed source, and compare what is read with what is read of a plain file."""
    inner = kind.partition(".")[0]
    other = path.with_name(f"plain.{inner}")
    content = damaged(random, make_content(kind))
    content = sealed(inner, content) if random.random() < 0.8 else content
    other.write_bytes(content)
    path.write_bytes(compress(content, kind))
    try:
        build = partial(mmapds.build, force=True, length="bytes()")
        built = [attempt(lambda each=each: build(each)) is not REFUSED for each in (path, other)]
        assert built[0] == built[1], f"indexed: {built[0]}; the plain file: {built[1]}"
        if not built[0]:
            return
        check(kind, path, {})
        found, expected = observe(str(path)), observe(str(other))
        names = found.keys() | expected.keys()
        differing = sorted(name for name in names if not is_same(found.get(name), expected.get(name), name))
        assert not differing, f"{differing} differ from the plain file"
    except Exception as error:
        raise AssertionError(f"{kind}: {content!r}: {error!r}") from error


def is_same(found, expected, name):
    """Whether two observations agree; samples and places name their files, so those are only both refused or not."""
    if name in ("records", "batch", "view", "places"):
        return (found is REFUSED) == (expected is REFUSED)
    return found is expected or found == expected


def check_file(random, kind, path, good, options):
    """Damage a file, one of those that a source has, and read it."""
    target = random.choice(sorted(good))
    data = good[target]
    if kind == "mma" and random.random() < 0.7:
        data = forged_array_file(random, data)
    else:
        data = damaged(random, data)
        data = sealed(kind, data) if random.random() < 0.8 else data
    target.write_bytes(data)
    try:
        check(kind, path, options)
    except Exception as error:
        raise AssertionError(f"{kind}: {target.name} = {data[:600]!r}: {error!r}") from error
    target.write_bytes(good[target])


def one(random):
    # Warnings say what is passed over, such as bytes behind the end of a plain tar.
    with tempfile.TemporaryDirectory() as folder, small_blocks(), warnings.catch_warnings(action="ignore"):
        kind = random.choice([*KINDS, *COMPRESSED])
        path = make_source(Path(folder), kind)
        options = {"format": kind} if kind in ("prefixed", "megatron") else {}
        if kind == "fixed":
            options = {"format": "fixed", "dtype": "u2", "shape": (3, 4)}
        index = path.with_suffix(".idx")
        good = {each: each.read_bytes() for each in (path, index) if each.exists()}
        for _ in range(SOURCES):
            if kind in COMPRESSED and random.random() < 0.7:
                check_content(random, kind, path)
            else:
                check_file(random, kind, path, good, options)


def run(seconds, seed):
    """Damage sources until the time is over; see tests/support/torture.py."""
    return f"{repeat(one, seconds, seed) * SOURCES:,} hostile sources: refused, or read as they are"
