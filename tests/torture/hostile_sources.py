"""Sources of every format with any bytes damaged, and right checksums where the format has some.

They are refused by an error of mmapds's; else they can be indexed, --verify passes over the index, what is read is the
same in all ways to read it, and of lines it is what a plain parser finds. A damaged compressed file has the text that
its codec finds, also after it is recompressed.
"""

import gzip
import struct
import warnings
import zlib

from xxhash import xxh3_64

import mmapds
from mmapds import _native
from tests.support import forged
from tests.support.forged import COMPRESSED, KINDS, REFUSED, attempt, observe
from tests.support.oracle import records as lines_of
from tests.support.tars import with_checksum
from tests.support.torture import doing, is_refused
from tests.support.zstd_files import zstd

EACH = 30
SAYS = "hostile sources: refused, or read as they are"
DECODERS = {
    "tar": ["files", "wds", "pil"],
    "tfrecord": ["tf_example", "bytes"],
    "jsonl": ["json", "text"],
    "mds": [None, "pil"],
    "mma": [None, "torch"],
}


def damaged(random, data):
    """Bytes with something else in some places."""
    data = bytearray(data)
    for _ in range(random.choice([1, 1, 2, 5])):
        at = random.randrange(len(data) + 1)
        width = random.choice([1, 2, 4, 8])
        number = (random.choice(forged.NUMBERS) % 256**width).to_bytes(width, random.choice(["little", "big"]))
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


def sealed(kind, data):
    """A damaged source with the checksums of its format made right."""
    out, at = bytearray(data), 0
    if kind == "tar":
        for at in range(0, len(data) - 511, 512):
            if out[at + 257 : at + 262] == b"ustar":
                out = bytearray(with_checksum(bytes(out), at))
    while kind == "tfrecord" and at + 12 <= len(out):
        end = at + 12 + int.from_bytes(out[at : at + 8], "little")
        for where, content in ((at + 8, out[at : at + 8]), (end, out[at + 12 : end])):
            crc = _native.crc32c(None, 0, content)
            masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32
            if where + 4 <= len(out):
                struct.pack_into("<I", out, where, masked)
        at = end + 4
    return bytes(out)


def forged_array_file(random, data):
    """An array file of which fields, numbers or bytes of the schema are others, every checksum right."""
    size = int.from_bytes(data[64:72], "little")
    text = bytearray(data[80 : 80 + size])
    if random.random() < 0.4:
        at = random.randrange(size)
        text[at] = random.choice([*b'019-[]{}n",:', text[at] ^ 1])
        data = data[:72] + struct.pack("<Q", xxh3_64(text).intdigest()) + bytes(text) + data[80 + size :]
    forgery = forged.Forgery(data)
    for _ in range(random.choice([0, 1, 1, 2])):
        forgery.change(random)
    return forgery.bytes()


def text_of(kind, path):
    """The text of a source of lines, by its codec; None where that refuses it."""
    codecs = {"jsonl": bytes, "jsonl.zst": zstd.decompress}
    try:
        return codecs.get(kind, gzip.decompress)(path.read_bytes())
    except (zstd.ZstdError, OSError, EOFError, zlib.error):
        return None


def check(kind, path, options):
    """Index a source, and read it in all ways."""
    if attempt(lambda: mmapds.build(path, force=True, **options)) is REFUSED:
        return
    found = observe(str(path))
    assert found, "cannot be opened though it was indexed just now"
    records = found["records"]
    if records is not REFUSED:
        assert (found["batch"], found["view"]) == (records[::-1], records[::2])
        if kind in ("jsonl", "jsonl.gz", "jsonl.bgz"):  # zstd of two versions may decode a damaged frame differently
            assert list(mmapds.open(path, decode="bytes")) == [line for _, line in lines_of(text_of(kind, path))]
    for decode in DECODERS.get(kind, ()):
        ds = mmapds.open(path, decode=decode)
        attempt(lambda ds=ds: list(ds))
        attempt(lambda ds=ds: list(ds.take(range(len(ds)))))
    # --verify reads checksums of array files and TFRecords, too.
    assert forged.is_verified(f"{path}.mmx") or kind in ("mma", "tfrecord"), "--verify refuses an index made just now"


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
    with doing(kind, target.name, data[:600]):
        check(kind, path, options)
        if kind.startswith("jsonl."):
            out = path.with_name("out.zst")
            if not is_refused(lambda: mmapds.seekable(path, out, frame=4096, workers=1, force=True)):
                assert zstd.decompress(out.read_bytes()) == text_of(kind, path)
    target.write_bytes(good[target])


def one(random, folder):
    # Warnings say what is passed over, such as bytes behind the end of a plain tar.
    with forged.small_blocks(), warnings.catch_warnings(action="ignore"):
        kind = random.choice([*KINDS, *COMPRESSED])
        path = forged.make_source(folder, kind)
        options = {"format": kind} if kind in ("prefixed", "megatron") else {}
        if kind == "fixed":
            options = {"format": "fixed", "dtype": "u2", "shape": (3, 4)}
        good = {each: each.read_bytes() for each in (path, path.with_suffix(".idx")) if each.exists()}
        for _ in range(EACH):
            check_file(random, kind, path, good, options)
