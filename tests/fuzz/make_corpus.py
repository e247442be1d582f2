"""Write the seeds of the fuzz targets: small valid inputs of every format, and the edges of each.

usage: python tests/fuzz/make_corpus.py (only needed when a target reads its input in another way). Inputs that found a
fault stay.
"""

import io
import struct
import tarfile
import zlib
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
VARINT_LIMIT = b"\xff" * 9 + b"\x01"  # 2^64 - 1


def lines():
    record = b'{"id":7,"text":"some words","len":10}'
    return {
        "empty": b"",
        "blank": b"\n\r\n \r\n\t",
        "plain": b"a\nb\nc\n",
        "no_last_newline": b"a\nb",
        "crlf": b"a\r\nb\r\n\r\nc\r\n",
        "byte_order_mark": b"\xef\xbb\xbfa\nb\n",
        "blank_between": b"a\n  \n\t\nb\n \r\n\nc",
        "block_edges": b"".join(b"x" * n + b"\n" for n in (62, 63, 64, 65, 127, 128)),
        "records": record + b"\n" + record + b"\r\n",
        "numbers": b"".join(b"%d, " % (n * n * 997 % 10**8) for n in range(90)),
        "numbers_compact": b"".join(b"%d," % (7**n % 10**8) for n in range(60)) + b"0,01,2," + b"9" * 9 + b"," * 20,
        "bounds": struct.pack("<6Q", 0, 8, 8, 20, 2**64 - 1, 3),
        "groups": struct.pack("<Q28HQ28H", 0, *range(28), 30, *range(28)),
        "groups_of_3_bytes": struct.pack("<Q", 9) + b"".join(n.to_bytes(3, "little") for n in range(18)),
        "groups_that_overflow": struct.pack("<Q14IQ7Q", 2**64 - 7, *range(14), 5, *range(2**64 - 9, 2**64 - 2)),
    }


def json_records():
    return {
        "number": b'{"a":1,"b":-2.5e3,"len":18446744073709551615}',
        "strings": '{"a":"é😀","len":"a\\"b\\\\"}'.encode(),
        "escapes": b'{"\\u0061":"\\ud83d\\ude00\\n","x\\"y":7}',
        "items": b'{"a":[1,[2,3],{"a":4},"]",[]]}',
        "empty_items": b'{"a":[ ],"b":{}}',
        "nested": b'{"a":{"a":{"b":1},"b":2},"b":3}',
        "duplicates": b'{"a":1,"a":null,"a":2}',
        "structure_in_strings": b'{"id":"a:\\"}","n":[7],"len":42}',
        "long": b'{"text":"' + b"word: {} " * 20 + b'","a":5,"tail":"' + b"\\\\" * 40 + b'"}',
        "backslashes_at_block_edge": b'{"x":"' + b"y" * 56 + b'\\\\\\"","a":1}',
        "numbers": b"[0,-0,1e308,4.9e-324,0.1,123456789012345678901234567890]",
        "mixed": (
            '{"a":1,"b":[1,2,{"a":3}],"len":"\\u00e9\\ud83d\\ude00 text \\"quoted\\" \\\\"}\n'
            '{"x":{"a":{"b":5}},"a":{"b":-1.5e-3,"b":7},"a":{"b":12345678901234567890}}\n'
            '{"a":"café 漢字 😀","\\u0061":[],"len":"","x\\"y":18446744073709551616}\n'
            '{"a": 0.1e+10 , "len":null}\n'
        ).encode(),
        "lines": b'{"a":1}\n\n{"a":2.5}\r\n{"b":1}\n{"a":-3}',
        "not_json": b'{"a":01}',
        "deep": b"[" * 30 + b"]" * 30,
    }


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
        "empty_rows": b"\x08" + b"\n".join(b'{"b":[' + b",".join([b"[]"] * 50) + b"]}" for _ in range(4)),
        "default_rows": b"\x88" + b"\n".join([b"{}"] * 9),
        "largest": b'\x0b{"a":[18446744073709551615,18446744073709551616,255,-1]}',
    }


def frames():
    payloads = [b"", b"a", b"hello", b"x" * 70]
    prefixed = {name: b"".join(struct.pack(name, len(p)) + p for p in payloads) for name in ("<I", ">I", "<Q", ">Q")}
    return {
        "u32le": prefixed["<I"],
        "u32be": prefixed[">I"],
        "u64le": prefixed["<Q"],
        "u64be": prefixed[">Q"],
        "varint": b"".join(bytes([len(p)]) + p for p in payloads) + b"\x80\x01" + b"y" * 128,
        "varint_too_long": b"\x80" * 11,
        "varint_largest": VARINT_LIMIT,
        "tfrecord": b"".join(struct.pack("<QI", len(p), 0) + p + b"\1\0\0\0" for p in payloads),  # CRCs are put right
        "cut_in_prefix": prefixed["<Q"][:-75],
        "cut_in_payload": prefixed["<I"][:-1],
        "size_overflows": struct.pack("<Q", 2**64 - 1) + b"abc",
    }


def tar(form, *members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, kind, data in members:
            member = tarfile.TarInfo(name)
            member.type, member.size = kind, len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def tars():
    files = [(name, tarfile.REGTYPE, name.encode()) for name in ("a.jpg", "a.json", "b.jpg", "d/c.s.txt", "d/.e")]
    odd = [("d", tarfile.DIRTYPE, b""), ("a.x", tarfile.REGTYPE, b"1"), ("l", tarfile.SYMTYPE, b""), ("a.y", b"7", b"")]
    long = [(f"{'n' * 150}/{'m' * 120}.txt", tarfile.REGTYPE, b"long name")]
    good = tar(tarfile.USTAR_FORMAT, *files)
    archives = {
        "ustar": good[:3584],
        "pax_long_name": tar(tarfile.PAX_FORMAT, *long)[:3584],
        "gnu_long_name": tar(tarfile.GNU_FORMAT, *long)[:3584],
        "folders_and_links": tar(tarfile.USTAR_FORMAT, *odd)[:3584],
        "duplicate_extension": tar(tarfile.USTAR_FORMAT, files[0], files[0])[:3072],
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


def columns():
    """How many records, numbers, parts and runs; parts, numbers, rooms: see fuzz_array_pack.c."""

    def part(data, bounds, mended=1):
        def number(value):
            bits = max(value.bit_length() - 1, 0)
            return bytes([value]) if mended else bytes([bits]) + value.to_bytes(bits // 8 + 1, "little")

        return bytes([len(data), mended]) + data + b"".join(number(begin) + number(size) for begin, size in bounds)

    def packing(records, numbers, runs, parts, rest):
        return bytes([records, numbers, len(parts), runs]) + b"".join(parts) + rest

    text, ends = b"hello, some words" * 5, [(0, 5), (7, 4), (12, 5), (17, 0)]
    numbers = bytes([7, 1, 15, 1, 2, 63, *b"\xff" * 8, 0, 0])
    return {
        "number": packing(4, 1, 0, [], numbers),
        "run": packing(4, 0, 1, [part(text, ends)], b"\0\2"),
        "array": packing(4, 0, 0, [part(text, ends)], b"\1\1" * 9),
        "many": packing(4, 2, 2, [part(text, ends), part(text[:9], [(0, 9)] * 4), part(text, ends)], numbers * 2),
        "overlapping": packing(
            3, 0, 1, [part(text, [(0, 80), (1, 79), (0, 85)]), part(b"", [(0, 0)] * 3)], b"\x80\0" * 9
        ),
        "outside": packing(3, 0, 0, [part(b"abcd", [(0, 4), (5, 0), (0, 1)], 0)], b"\xff\7"),
        "wraps": packing(2, 0, 1, [part(b"abcd", [(2**64 - 1, 2), (2, 2**64 - 1)], 0)], b"\xff\7"),
        "no_columns": packing(6, 0, 0, [], b"\x40\0\x80\0"),
        "no_records": packing(0, 2, 1, [part(b"a", []), part(b"b", [])], b""),
    }


def plans():
    """A budget as (bits, value) magnitudes, then lengths: see LLVMFuzzerTestOneInput."""

    def magnitude(number, low=0):
        bits = max((number - low).bit_length() - 1, 0)
        return bytes([bits]) + (number - low).to_bytes(bits // 8 + 1, "little")

    def plan(tokens, largest, multiple, quadratic, wanted, close, longest, runs, rest=b""):
        head = magnitude(tokens) + magnitude(largest, 1) + magnitude(multiple, 1) + magnitude(quadratic)
        head += magnitude(wanted, 1) + bytes([close, 0, len(runs) - 1]) + magnitude(longest, len(runs) - 1)
        for count, fall in runs:
            head += bytes([count - 1]) + (magnitude(fall, 1) if fall else b"")
        return head + bytes([2]) + rest

    return {
        "one_length": plan(100, 64, 1, 0, 4, 1, 10, [(37, 0)], b"\5\6\7"),
        "falling": plan(1000, 32, 8, 0, 8, 1, 200, [(10, 50), (30, 20), (60, 1), (60, 0)], b"abcdefghijklmnop"),
        "windows": plan(120, 2**31, 1, 0, 2, 0, 60, [(6, 15), (24, 21), (19, 5), (27, 0)], b"\1\2\3\4\5\6\7\x40" * 3),
        "quadratic": plan(4096, 16, 1, 64, 4, 1, 256, [(20, 128), (40, 100), (50, 0)], b"\xff" * 20),
        "over_budget": plan(10, 8, 1, 0, 2, 0, 50, [(5, 30), (20, 0)], b"zyxwvut"),
        "zero_length": plan(10, 8, 4, 0, 8, 1, 2, [(5, 1), (9, 1), (60, 0)], b"\0\1" * 8),
        "empty": b"",
    }


def orders():
    """The first byte says which order: see LLVMFuzzerTestOneInput."""
    keys = bytes(range(8)) + b"\1\0\2"
    return {
        "large": bytes([0, 62]) + (2**62 + 12345).to_bytes(8, "little") + keys + b"\x99" * 8,
        "medium": bytes([0, 10]) + (999).to_bytes(2, "little") + keys + bytes(8),
        "small": bytes([1, 33]) + keys,
        "one_record": bytes([1]) + bytes(12),
        "chunks": bytes([2, 2, 6]) + bytes(8) + bytes([3, 20, 0, 23, 1]) + bytes([5, 7]),
        "full_chunks": bytes([2, 0, 9]) + bytes(8) + bytes([0, 20, 4, 0, 1]),
        "mixture": bytes([3, 2]) + bytes(8) + bytes([1, 1, 5, 10, 3, 4, 20, 0]),
        "uneven_weights": bytes([3, 5]) + bytes(8) + bytes([2, 1, 1, 49, 59, 0, 0, 0, 30, 7, 8, 9, 1, 1, 1]),
    }


def lengths():
    return {
        "ascending": bytes([0, 0, 7, 15]) + b"".join(struct.pack("<H", n) for n in range(50)),
        "equal": bytes([1, 0, 3, 31]) + b"\5\0" * 30,
        "wide": bytes([1, 1, 11, 63]) + bytes(range(200)),
        "one_pass": bytes([0, 1, 11, 9]) + bytes(range(99, 0, -1)),
        "none": bytes([0, 0, 1, 1]),
    }


def measured():
    """What to measure, the cuts between blocks, and lines: see LLVMFuzzerTestOneInput."""

    def measuring(missing, validate, columns, which, cuts, lines):
        return bytes([missing, validate, columns, which, len(cuts), *cuts]) + lines

    records = b"".join(b'{"a":%d,"len":%d,"text":"%s"}\n' % (n, -n, b"x" * n) for n in range(6))
    return {
        "numbers": measuring(0, 0, 2, 0, [], records),
        "cut_in_lines": measuring(0, 1, 3, 2, [20, 100, 200], records),
        "blank_lines_at_cuts": measuring(1, 0, 1, 0, [80, 128, 170], b'\n \n{"a":1}\n\n\t\r\n {"a":2}\r\n\n{"b":3}\n'),
        "byte_order_mark": measuring(0, 1, 1, 5, [3, 30], b'\xef\xbb\xbf{"a":1}\r\n{"a":2}'),
        "skipped": measuring(1, 0, 2, 0, [90], records + b'{"len":null}\n{"a":1.5,"len":2}\n'),
        "filled": measuring(2, 0, 3, 3, [], b'{"b":1}\n{"a":{"b":2}}\n{"a":18446744073709551615}\n{"a":-1}\n'),
        "wrong_type": measuring(0, 0, 1, 0, [128], records + b'{"a":"x"}\n' + records),
        "not_json": measuring(0, 1, 1, 0, [10, 240], records + b"{\n"),
    }


def packs():
    """Limits, then lengths: see LLVMFuzzerTestOneInput."""

    def magnitude(number, low):
        bits = max((number - low).bit_length() - 1, 0)
        return bytes([bits]) + (number - low).to_bytes(bits // 8 + 1, "little")

    def packing(length, most, runs, rest=b""):
        """Runs of (length, sequences), the longest first."""
        longest = runs[0][0]
        head = bytes([len(runs) - 1]) + magnitude(length, len(runs)) + bytes([most - 1, longest == length])
        head += b"" if longest == length else magnitude(longest, len(runs))
        for (value, count), following in zip(runs, [*runs[1:], None], strict=True):
            head += bytes([count - 1]) + (magnitude(value - following[0], 1) if following else b"")
        return head + rest

    return {
        "one_length": packing(100, 12, [(30, 11)], b"\1\2\3\4\5\1\2\3"),
        "whole_packs": packing(64, 12, [(64, 3), (32, 5), (16, 9), (1, 12)], b"\7" * 20),
        "few_sequences": packing(1000, 3, [(600, 5), (300, 12), (90, 12), (2, 12)], b"abcdefghijklmnop"),
        "falling": packing(2048, 12, [(1500 - 97 * i, 1 + i) for i in range(10)], b"\xff\0\1\2\3\1" * 5),
        "large": packing(2**63, 12, [(2**63, 2), (2**62, 7), (3, 9)], b"zyxwvut" * 3),
        "empty": b"",
    }


def padded():
    """The fields, what to pad to, where records end, and records: see LLVMFuzzerTestOneInput."""

    def padding(fields, longest, mend, left, sizes, data):
        head = bytes([len(fields) - 1, len(sizes) - 1, *fields, longest, mend, left])
        return head + bytes(size // 4 for size in sizes) + data

    ragged, matrix, word = 1, 1 | 64 | 32, 0
    return {
        "ragged": padding([ragged], 3, 1, 0, [128, 128, 128], bytes(range(1, 255)) * 2),
        "left": padding([ragged | 16], 4, 1, 1, [128, 128], bytes(range(1, 255)) * 2),
        "two_axes": padding([matrix | 8], 2, 1, 0, [512, 512], bytes(range(1, 255)) * 5),
        "word_and_array": padding([word, ragged], 5, 1, 0, [256, 256], bytes(range(1, 255)) * 3),
        "hostile": padding([ragged], 5, 0, 0, [64, 64], struct.pack("<QQ", 64, 2**63) * 8),
    }


def sets():
    """The limit, how many numbers, the numbers, ranks, and what is damaged: see LLVMFuzzerTestOneInput."""

    def having(limit, numbers, rest=b""):
        width = 1 if limit - 1 < 256 else 2
        head = struct.pack("<H", limit) + bytes([len(numbers)])
        return head + b"".join(number.to_bytes(width, "little") for number in numbers) + rest

    damage = bytes(range(255, 0, -1)) * 3
    return {
        "empty": having(0, []),
        "one": having(1, [0], damage),
        "word": having(64, [63, 0, 5], bytes(range(70)) + damage),
        "beside_a_block": having(2049, [2047, 2048, 0], bytes(range(70)) + damage),
        "blocks": having(4480, [97 * n % 4480 for n in range(200)], bytes(range(200)) + damage),
        "dense": having(200, list(range(200)), bytes(range(200)) + damage),
    }


def decoded_blocks():
    """Where the content begins, records, then blocks: see fuzz_blocks.c."""

    def content(records, blocks, before_end=None):
        """Records are (begin, size), and blocks (begin or None for that of the next byte, their content)."""
        head = b"\0" if before_end is None else struct.pack("<BH", 1, before_end - 600)
        numbers = b"".join(struct.pack("<HH", *record) for record in records)
        out = [head, bytes([len(records)]), numbers, bytes([len(blocks)])]
        for begin, data in blocks:
            out.append(b"\1" if begin is None else struct.pack("<BH", 0, begin))
            out.append(struct.pack("<H", len(data)) + data)
        return b"".join(out)

    some = bytes(range(1, 256))
    return {
        "empty": content([], []),
        "cover": content([(0, 10), (10, 0), (10, 200), (210, 300)], [(None, some), (None, some), (None, some[:90])]),
        "overlap": content([(5, 20), (7, 9), (100, 1)], [(0, some[:50]), (20, some), (3, some[:9])]),
        "gap": content([(0, 600), (300, 100)], [(0, some[:100]), (500, some[:100])]),
        "ends_that_fall": content([(0, 500), (1, 2), (3, 4), (400, 100)], [(2, some), (None, some)]),
        "near_the_end": content([(0, 50), (599, 600)], [(0, some[:60]), (590, some)], before_end=700),
    }


def zstd_frames():
    """Frames, and the recipe of some: see cook() in fuzz_zstd.c."""

    def frame(header, *blocks):
        """Blocks are (their type, the size that they say, their content)."""
        last = len(blocks) - 1
        said = [struct.pack("<I", (k == last) | kind << 1 | size << 3)[:3] for k, (kind, size, _) in enumerate(blocks)]
        return b"\x28\xb5\x2f\xfd" + header + b"".join(map(bytes.__add__, said, [content for *_, content in blocks]))

    good = frame(b"\x20\x02", (0, 2, b"ab"))
    run = (
        frame(b"\x84\x58" + struct.pack("<I", 300_000), (1, 131_072, b"x"), (2, 5, b"pack."), (1, 37_856, b"y"))
        + b"sums"
    )
    skippable = struct.pack("<II", 0x184D2A50, 4) + b"size"
    return {
        "one": good,
        "runs": run,
        "streamed": frame(b"\x00\x58", (0, 3, b"abc"), (0, 0, b"")),
        "skippable_between": skippable + good + skippable + run,
        "seek_table": good + struct.pack("<IIIIIBI", 0x184D2A5E, 17, len(good), 2, 1, 0x80, 0x8F92EAB1),
        "dictionary": frame(b"\x03\x58\x07\0\0\0", (0, 1, b"a")),
        "large_window": frame(b"\x00\xff", (0, 1, b"a")),
        "bomb": frame(b"\xe0" + b"\xff" * 8, (0, 1, b"a")),
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
    "fuzz_array_pack": columns,
    "fuzz_array_record": array_records,
    "fuzz_bits": sets,
    "fuzz_blocks": decoded_blocks,
    "fuzz_fields": field_records,
    "fuzz_frames": frames,
    "fuzz_inflate": members,
    "fuzz_json": json_records,
    "fuzz_kernels": lines,
    "fuzz_measure": measured,
    "fuzz_orders": orders,
    "fuzz_packing": packs,
    "fuzz_pad": padded,
    "fuzz_plan": plans,
    "fuzz_records": lines,
    "fuzz_sort": lengths,
    "fuzz_tar": tars,
    "fuzz_zstd": zstd_frames,
}

if __name__ == "__main__":
    for target, make in SEEDS.items():
        folder = CORPUS / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in make().items():
            (folder / name).write_bytes(data)
