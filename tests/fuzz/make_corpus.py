"""Write seeds of the fuzz targets that read binary formats: small valid inputs of each, and their edges.

usage: python -m tests.fuzz.make_corpus (only needed when a target reads its input in another way). Inputs that found a
fault stay, and so do the seeds of other targets: text, and numbers of which any are valid.
"""

import struct
import tarfile
import zlib

from tests.support.fuzzing import CORPUS
from tests.support.samples import PREFIXES, framed
from tests.support.tars import archive, special
from tests.support.zstd_files import COMPRESSED, RUN, block, frame, raw, skippable


def field_records():
    """What is wanted, and records: see choose() in fuzz_fields.c."""
    lists = b'{"a":[1, 2, -3],"b":[[1],[],[2,3]],"m":{"a":[[1,2]],"b":7},"text":"x\\u00e9y"}'
    tokens = b", ".join(b"%d" % (n * n * 37 % 300_000) for n in range(60))
    compact = b",".join(b"%d" % (10**n % 123_456_789) for n in range(30))
    return {
        "lists": b"\x20" + lists,
        "tokens": b'\x08{"a":[' + tokens + b'],"text":"word"}',
        "compact": b'\x09{"a":[' + compact + b",-1,01]}",
        "floats": b'\x0c{"a":[0.1,1e-320,123456789012345678901234567890e-25,-0.0],"m":{"b":1.7976931348623158e308}}',
        "half": b'\x0d{"a":[65504,65519.9,6e-8,2.9e-8],"b":[[1e5]]}',
        "bools": b'\x0f{"a":[true,false],"b":[[true]],"m":{"a":[true],"b":false}}',
        "duplicates": b'\x08{"a":"x","a":[1.5],"a":7,"m":3,"m":{"a":[]},"\\u0061":[[1]]}',
        "defaults": b'\x08{}\n{"a":null}\n{"m":null}',
        "ragged": b'\x08{"a":[[1,2],[3]]}\n{"a":[[[]],[]]}\n{"b":[1]}\n{"a":' + b"[" * 9 + b"]" * 9 + b"}",
        "lines": b"\x28" + lists + b"\n[]\n" + lists + b"\n{\n\n" + lists,
        "largest": b'\x0b{"a":[18446744073709551615,18446744073709551616,255,-1]}',
    }


def frames():
    payloads = b"", b"a", b"hello", b"x" * 70, b"y" * 128
    return {
        **{name: b"".join(framed(each, name) for each in payloads) for name in (*PREFIXES, "tfrecord")},
        "varint_too_long": b"\x80" * 11,
        "varint_largest": b"\xff" * 9 + b"\x01",  # 2^64 - 1
        "cut_in_prefix": framed(b"a", "u64le") + framed(b"", "u64le")[:5],
        "cut_in_payload": framed(b"hello", "u32le")[:-1],
        "size_overflows": struct.pack("<Q", 2**64 - 1) + b"abc",
    }


def tars():
    files = [(name, name.encode()) for name in ("a.jpg", "a.json", "b.jpg", "d/c.s.txt", "d/.e")]
    odd = [special("d", tarfile.DIRTYPE), ("a.x", b"1"), special("l", tarfile.SYMTYPE), special("a.y", b"7")]
    long = [(f"{'n' * 150}/{'m' * 120}.txt", b"long name")]
    good = archive(files, "ustar")
    archives = {
        "ustar": good[:3584],
        "pax_long_name": archive(long, "pax")[:3584],
        "gnu_long_name": archive(long, "gnu")[:3584],
        "folders_and_links": archive(odd, "ustar")[:3584],
        "duplicate_extension": archive([files[0], files[0]], "ustar")[:3072],
        "cut_in_header": good[:700],
        "cut_in_member": good[:513],
        "one_block_of_zeros": good[:1024] + bytes(512) + good[:1024],
        "empty": bytes(1024),
    }
    recipe = [1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 1, 0, 0, 0, 0, 17, 4, 5, 2, 1, 2, 0, 0, 1, 5, 0, 1, 1, 0, 0, 0]
    # The last byte says how an input is taken: 0 as it is, 1 with checksums put right, 2 as a recipe.
    taken = {name: archive + b"\0" for name, archive in archives.items()}
    return taken | {"wrong_checksum": good[:100] + b"x" + good[101:1536] + b"\1", "recipe": bytes([*recipe, 2])}


def array_records():
    def record(fields, words, tail=b""):
        """A count of fields, their bytes, then a record: its size, its words, its bytes."""
        choice = bytes([len(fields), *fields, *bytes(6 - len(fields))])
        return choice + struct.pack(f"<{len(words) + 1}Q", 8 * len(words) + 8 + len(tail), *words) + tail

    word, text, ragged, matrix = 0, 1, 17, 35  # the last has two ragged axes and elements of two bytes
    return {
        "word": record([word], [7]),
        "bytes": record([text], [5], b"hello"),
        "ragged": record([ragged], [3], bytes(48) + b"abc"),
        "empty_axis": record([matrix], [0, 5], bytes(40)),
        "many": record([word, text, ragged, matrix], [1, 3, 5, 2, 3], b"abc" + bytes(89)),
        "no_fields": record([], []),
        "size_too_large": record([word], [7])[:-4],
        "length_overflows": record([ragged], [2**63], b"x"),
    }


def zstd_frames():
    """Frames, and the recipe of some: see cook() in fuzz_zstd.c."""
    good, one = frame(raw(b"ab"), size=2), raw(b"a")
    runs = block(RUN, 131_072, b"x", last=False), block(COMPRESSED, 5, b"pack.", last=False), block(RUN, 37_856, b"y")
    run, between = frame(*runs, size=300_000, window=0x58, checksum=b"sums"), skippable(b"size", 0)
    return {
        "one": good,
        "runs": run,
        "streamed": frame(raw(b"abc", last=False), raw(b""), window=0x58),
        "skippable_between": between + good + between + run,
        "seek_table": good + struct.pack("<IIIIIBI", 0x184D2A5E, 17, len(good), 2, 1, 0x80, 0x8F92EAB1),
        "dictionary": frame(one, window=0x58, dictionary=7),
        "large_window": frame(one, window=0xFF),
        "bomb": frame(one, size=2**64 - 1),
        "cut_in_block": run[:20],
        "garbage_behind": good + b"garbage",
        "recipe": bytes(range(1, 200)),
    }


def members():
    """The blocks of a member, which fuzz_inflate.c gives a header; whole files; and a recipe: see its cook()."""
    content = b"".join(b'{"id":%d,"text":"%s"}\n' % (n, b"word " * (n % 7)) for n in range(60))

    def blocks(level, strategy=zlib.Z_DEFAULT_STRATEGY, window=15, flush=zlib.Z_NO_FLUSH, data=content):
        packer = zlib.compressobj(level, zlib.DEFLATED, -window, 8, strategy)
        body = packer.compress(data[:900]) + packer.flush(flush) + packer.compress(data[900:]) + packer.flush()
        return body + struct.pack("<II", zlib.crc32(data), len(data))

    header = b"\x1f\x8b\x08" + bytes(6) + b"\xff"
    named = b"\x1f\x8b\x08\x1f" + bytes(6) + b"\x02\0ab" + b"name\0comment\0" + bytes(2)
    return {
        "fast": blocks(1),
        "best": blocks(9),
        "stored": blocks(0),
        "fixed": blocks(6, zlib.Z_FIXED),
        "no_matches": blocks(6, zlib.Z_HUFFMAN_ONLY),
        "small_window": blocks(6, window=9),
        "flushed": blocks(6, flush=zlib.Z_FULL_FLUSH),
        "run": blocks(9, data=b"x" * 20_000),
        "long_codes": blocks(6, zlib.Z_HUFFMAN_ONLY, data=b"".join(bytes([n]) * (1 << n // 2) for n in range(24))),
        "file": header + blocks(6),
        "files": header + blocks(6) + named + blocks(1) + header + blocks(0, data=b"") + bytes(9),
        "recipe": bytes(range(1, 250)),
    }


SEEDS = {
    "fuzz_array_record": array_records,
    "fuzz_fields": field_records,
    "fuzz_frames": frames,
    "fuzz_inflate": members,
    "fuzz_tar": tars,
    "fuzz_zstd": zstd_frames,
}

if __name__ == "__main__":
    for target, make in SEEDS.items():
        folder = CORPUS / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in make().items():
            (folder / name).write_bytes(data)
