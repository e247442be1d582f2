"""A valid call of everything in mmapds._native, and what may stand in place of its arguments.

`python -m tests.support.native_calls FOLDER` makes every allocation of every call fail.
"""

import gzip
import importlib.util
import re
import struct
import sys
from pathlib import Path
from types import SimpleNamespace

from mmapds import _native as core
from mmapds.compression import zstd
from tests.support.tars import archive

LINES = (
    b'{"a": [1, 2], "b": true, "f": 0.5, "m": [[1, 2], [3, 4]], "n": -5, "r": [[1], [2, 3]], "s": "\\u00e4", "u": 7}\n'
    b'{"a": [], "b": false, "f": 2, "m": [[5, 6]], "n": 6.0, "r": [], "s": "text", "u": 8}\n'
)
SECOND = LINES.index(b"\n") + 1
NONE = 2**64 - 1


def words(*numbers):
    return bytearray(struct.pack(f"{len(numbers)}Q", *numbers))


def halves(*numbers):
    return bytearray(struct.pack(f"{len(numbers)}I", *numbers))


class Opener:
    """One source, as `Records` asks for it."""

    def __init__(self, *opened):
        self.opened = opened

    def open(self, *_):
        return self.opened

    def lost(self, *where):
        raise EOFError(where)

    def no_room(self, *where):
        raise MemoryError(where)

    corrupt = lost


class Dataset(core.Samples):
    def __init__(self, records, decode):
        self._records, self._decode_record = records, decode

    def _at(self, key):
        return "other", key

    def _raise_at(self, position, key, error):
        raise error


def refuse(_, error):
    raise error


def make_array(shape, _, memory, offset=0):
    return shape, bytes(memory)[offset:]


# ---- the table ------------------------------------------------------------------------------------------------------


def use(kind, method):
    """What makes an object and calls a method of it, each with arguments of its own."""
    return lambda made, args: call(getattr(call(kind, made), method), args)


def table(folder):
    """Rows of a name, `Type`, `Type.method` or `function` and perhaps more words; what is called; and its arguments, a
    tuple or a dict of keywords. Buffers are bytearrays; files of the rows come into the folder."""

    def file(name, data, io=core.IO_MAP):
        Path(folder, name).write_bytes(data)
        return core.Map(str(Path(folder, name)), io)

    def index(*bounds):
        return file(str(bounds), core.pack_bounds(8, b"", words(*bounds, *[bounds[-1]] * (8 - len(bounds)))))

    def records(source, index, views=False, framing=core.FRAMING_NONE):
        return core.Records(words(0, 2), Opener(source, index, 0, 8, framing, 0, 0), False, True, views)

    def opened(*opened):
        return core.Records(words(0, 2), Opener(*opened), True, True, True).many([0, 1])

    def reader(size, pieces):
        return SimpleNamespace(size=size, blocks=lambda _: pieces)

    def sample(*args):
        return Dataset(*args[:-1])[args[-1]]

    two, three, four, half, room = words(0, 0), words(0, 0, 0), words(0, 0, 0, 0), halves(0, 0, 0), bytearray(1 << 10)
    lines, read, bounds = file("lines", LINES), file("lines", LINES, core.IO_PREAD), index(0, SECOND, len(LINES))
    pieces = [(at, LINES[at : at + 50]) for at in range(0, len(LINES), 50)]
    mapped = records(lines, bounds)
    blocks = core.BlockMemory()

    # records of named arrays
    array_words = (words(NONE, 1), words(3, 0), words(2, 1), words(4, 4), words(300, 1))
    array_parts = (
        *((b"text", words(0, size), words(size, 4 - size), False) for size in (3, 2)),
        (b"nulltrue", words(0, 4), words(4, 4), False),
        (bytes(602), words(0, 600), words(600, 2), True),
        (bytes(6), words(0, 3), words(3, 3), True),
    )
    arrays, ends = bytearray(4096), words(0, 0)
    core.pack_array_records(array_words, array_parts, 0, arrays, ends)
    first, last = struct.unpack("2Q", ends)
    array_fields = (
        *((f"field {kind}", kind, 1, (), None) for kind in (core.FIELD_INT, core.FIELD_BYTES, core.FIELD_STR)),
        ("j", core.FIELD_JSON, 1, (), None),
        ("a", core.FIELD_ARRAY, 1, (None, 2), "u1"),
        ("c", core.FIELD_COPY, 1, (3,), "u1"),
    )
    array_options = (make_array, bytes, ValueError)
    arrays_of = core.ArrayFields(array_fields, *array_options)
    array_file = file("arrays", arrays[:last])
    array_records = records(array_file, index(0, first, last))
    array_batch = core.ArrayBatch(array_records, [0, 1], arrays_of)
    many_words = [(str(k), k % 4, 1, (), None) for k in range(20)]  # FIELD_UINT, FIELD_INT, FIELD_FLOAT, FIELD_BOOL

    # records of JSON: (name, place, kind, size, layout, shape, dtype, path, fallback)
    json_fields = tuple(
        (name, 7 - place, *field, "dtype", (name.encode(),), b"3" if name == "n" else None)
        for place, (name, *field) in enumerate(
            (
                ("a", core.ITEM_INT, 8, core.LAYOUT_SHAPE, (None,)),
                ("b", core.ITEM_BOOL, 1, core.LAYOUT_ANY, ()),
                ("f", core.ITEM_FLOAT, 4, core.LAYOUT_ANY, ()),
                ("m", core.ITEM_UINT, 2, core.LAYOUT_SHAPE, (None, 2)),
                ("n", core.ITEM_FLOAT, 8, core.LAYOUT_ANY, ()),
                ("r", core.ITEM_INT, 4, core.LAYOUT_RAGGED, ()),
                ("s", core.ITEM_TEXT, 1, core.LAYOUT_ANY, ()),
                ("u", core.ITEM_UINT, 8, core.LAYOUT_ANY, ()),
            )
        )
    )
    json_of = core.JsonFields(json_fields, make_array, ValueError)
    pair_of = core.JsonFields((("a", 0, core.ITEM_INT, 8, 1, (2,), None, (b"a",), None),), make_array, ValueError)
    json_batch = core.JsonBatch(mapped, [0, 1], json_of, False)
    refused = core.JsonBatch(mapped, [0, 1], pair_of, True)
    measured = ((core.MEASURE_NUMBER, (b"n",)), (core.MEASURE_CHARS, (b"s",)), (core.MEASURE_ITEMS, (b"a",)))
    measuring = {"fields": measured, "missing": 0, "fill": (0, 0), "validate": True, "skip_bad": True}

    # other formats
    tar = archive([("a.txt", b"text"), ("a.bin", b"0123"), ("b.txt", b"")], "ustar")
    frame = b"\x28\xb5\x2f\xfd\x20" + bytes([50]) + (1 | 50 << 3).to_bytes(3, "little") + LINES[:50]
    path = str(Path(folder, "tar"))
    bad, framed = file("bad lines", b"{\n" + LINES), file("framed", b"\4\0\0\0abcd" * 3)
    packed, frames, tars = file("gz", gzip.compress(LINES)), file("zst", frame * 2), file("tar", tar)

    # orders, plans and tables
    order = core.Permutation(5, 0, 0, 0)
    chunks = {"chunk_size": 4, "mix_chunks": 2, "seed": 0, "epoch": 0, "order": order}
    chunks |= {
        "first_chunk": words(0, 3, 5),
        "first_record": words(0, 10, 17),
    }  # of which the third and fifth are short
    chunks |= {"short_slots": words(0, 4), "short_ends": words(2, 17), "short_missing": words(0, 2, 3)}
    mixture = {"weights": words(1, 2), "sizes": words(5, 5), "seed": 0, "shuffle": True}
    plan = {"buckets": words(0, 0, 2, 2, 4, 2, 1, 3), "first_rank": 0, "seed": 0, "epoch": 0, "shuffle": True}
    packs = {"kinds": words(1, 2, 1, 1), "parts": words(0, 1, 1, 2, 1, 1), "counts": words(1, 3)}
    stream = {"buckets": words(0, 0, 1, 2, 2, 1, 1, 2), "ranks": 4, "records": 10, "values": words(5)}
    stream |= {"first_buckets": halves(0), "splits": words(4), "table": halves(*[2**32 - 1] * 5, 0)}
    runs = {"pieces": ((words(5, 6, 7, 0), 8, 5, 2, 100), (halves(0, 1), 4, 0, 1, 0)), "total": 4}
    runs |= {"begins": words(0, 2, 3), "begin_width": 8, "which": halves(0, 1, 0)}
    runs |= {"places": halves(1, 0, 0), "place_width": 4}
    lengths, of_one = (halves(3, 1, 2), 4), (words(7, 5), words(1, 2), words(0, 1))
    into = (two, 8, halves(0, 0), halves(0, 0), 4)

    rows = {
        "Map": (core.Map, (str(Path(folder, "lines")), core.IO_COPY)),
        "Map.read": (lines.read, (1, 5)),
        "Map.read by pread": (read.read, (1, 5)),
        "Map.read_runs": (lines.read_runs, (words(1, 0), 5, bytearray(10))),
        "Map.count_above": (file("falling", halves(7, 5, 3)).count_above, (0, 3, 4)),
        "Map.take": (file("numbers", words(7, 5, 3)).take, (0, 8, 3, words(2, 0), two)),
        "Map.advise": (lines.advise, (core.ADVISE_RANDOM,)),
        "Map.populate": (lines.populate, (0, 10)),
        "Records": (core.Records, (words(0, 2, 3), Opener(), True, True, True)),
        "Records opened": (opened, (lines, bounds, 0, 8, core.FRAMING_LINES, 0, 0)),
        "Records of one size": (opened, (lines, bounds, 0, 0, 0, 1, 8)),
        "Records in pieces": (lambda *args: records(reader(*args), bounds).many([0, 1, 0]), (len(LINES), pieces)),
        "Records in one piece": (lambda *args: records(reader(*args), bounds)[1], (len(LINES), [(0, LINES)])),
        "Samples": (core.Samples, ()),
        "Samples decoded": (sample, (records(lines, bounds, True), bytes, 1)),
        "Samples undecoded": (sample, (mapped, None, 1)),
        "Samples refused": (sample, (mapped, int, 1)),
        "ArrayFields": (use(core.ArrayFields, "__call__"), ((array_fields, *array_options), (arrays[:first],))),
        "ArrayFields of text": (use(core.ArrayFields, "__call__"), ((array_fields, make_array, int, int), (b"",))),
        "ArrayFields, many": (arrays_of.__class__((*many_words,), *array_options), (bytes(words(168, *range(20))),)),
        "ArrayFields.words": (arrays_of.words, (array_file, 0)),
        "ArrayBatch": (core.ArrayBatch, (mapped, [0, 1], arrays_of)),  # records that have not these fields
        "ArrayBatch item": (array_batch.__getitem__, (1,)),
        "ArrayBatch.check": (array_batch.check, (1,)),
        "ArrayBatch.words": (use(core.ArrayBatch, "words"), ((array_records, [0, 1], arrays_of), (0,))),
        "ArrayBatch.shapes": (array_batch.shapes, (4,)),
        "ArrayBatch.join": (array_batch.join, (4, (1, True), 2, None, 0, bytearray(4))),
        "JsonFields": (use(core.JsonFields, "__call__"), ((json_fields, make_array, ValueError), (LINES[:SECOND],))),
        "JsonFields, large": (json_of, (bytearray(LINES[:SECOND] + b" " * (20 << 10)),)),
        "JsonFields, damaged": (json_of, (LINES[1:SECOND],)),
        "JsonBatch": (core.JsonBatch, (mapped, [0, 1], json_of, False)),
        "JsonBatch item": (json_batch.__getitem__, (1,)),
        "JsonBatch.places": (lambda: json_batch.places, ()),
        "JsonBatch.refused": (lambda: refused.refused, ()),
        "JsonBatch.items": (json_batch.items, (0,)),
        "JsonBatch.join": (json_batch.join, (0, (2, False), 8, words(0, 16), 0, bytearray(32))),
        "TarScanner": (core.TarScanner, (path,)),
        "TarScanner.scan": (use(core.TarScanner, "scan"), ((path,), (tars, len(tar), True, three, three, three))),
        "TarScanner.scan, twice": (use(core.TarScanner, "scan"), ((), (tar[:1024] * 2, 2048, True, two, two, two))),
        "TarScanner.scan, part": (use(core.TarScanner, "scan"), ((), (tar[:1600], 1600, False, two, two, two))),
        "Inflater.read": (use(core.Inflater, "read"), ((packed,), (bytearray(1 << 12), 0, 1 << 12))),
        "Block": (lambda *args: len(blocks.copy(args)), (b"one", b"two")),
        "BlockMemory": (core.BlockMemory, ()),
        "BlockMemory.copy": (blocks.copy, (6, (b"one", b"", b"two"))),
        "Zstd, missing": (core.Zstd, ("libmissing.so",)),
        "Zstd, another": (core.Zstd, ("libc.so.6",)),
        "Measuring.lines": (use(core.Measuring, "lines"), (measuring, (bad, 0, 0, bad.size, room, (room,) * 3))),
        "Permutation": (core.Permutation, (5, 1, 2, 3)),
        "Permutation.one": (order.one, (3, True)),
        "Permutation.range": (order.range, (4, -2, three)),
        "Permutation.array": (order.array, (words(4, 0), two, True)),
        "Chunks.at": (use(core.Chunks, "at"), (chunks, (words(16, 0), two))),
        "Mixture.at": (use(core.Mixture, "at"), (mixture, (1, words(16, 0), two))),
        "Mixture.which": (use(core.Mixture, "which"), (mixture, (words(16, 0), two))),
        "Lengths.largest": (use(core.Lengths, "largest"), (lengths, ())),
        "Lengths.sort": (use(core.Lengths, "sort"), (lengths, (four, half, 4))),
        "Lengths.sort_digits": (use(core.Lengths, "sort_digits"), (lengths, (1, two, halves(2, 1, 0), half, 4))),
        "Lengths.runs": (use(core.Lengths, "runs"), (lengths, (halves(1, 2, 0), 4))),
        "Plan.batches": (use(core.Plan, "batches"), (plan, (words(2, 0), words(*[0] * 5), two))),
        "Packs.ranks": (use(core.Packs, "ranks"), (packs, (1, 2, True, words(1, 0), four, two))),
        "Stream.push": (use(core.Stream, "push"), (stream, (words(0, 1, 2), words(5, 4, 5), four, two))),
        "Bits.select": (use(core.Bits, "select"), ((words(0b1011), words(0, 3), 64), (words(2, 0), two))),
        "Runs.at": (use(core.Runs, "at"), (runs, (words(0, 3), two))),
        "scan_lines": (core.scan_lines, (core.SIMD, lines, 10, None, room)),
        "pack_array_records": (core.pack_array_records, (array_words, array_parts, 1, room, words(0))),
        "pack_bounds": (core.pack_bounds, (8, words(1, 2), words(3, 4, 5, 6, 7, 8))),
        "unpack_bounds": (core.unpack_bounds, (8, words(*range(8)))),
        "record_sizes": (core.record_sizes, (words(5, 9, 20), 1, 100, 0)),
        "frames_scan": (core.frames_scan, (framed, core.FRAMING_U32LE, 100, 124, three, three)),
        "frames_verify": (core.frames_verify, (framed, 100, 124)),
        "zstd_walk": (core.zstd_walk, (frames, frames.size, 1 << 20, words(*[0] * 7), three, three)),
        "varints": (core.varints, (b"\0\x81\1\2", 1, 4)),
        "crc32c": (core.crc32c, (core.SIMD, 1, b"abcd")),
        "measure_record": (core.measure_record, (None, measured[:1], LINES[:SECOND])),
        "json_error": (core.json_error, (None, LINES[:SECOND])),
        "cells_convert": (core.cells_convert, (words(1, 2), core.NUMBER_U64, core.NUMBER_F64)),
        "cells_narrow": (core.cells_narrow, (words(1, 2), halves(0, 0))),
        "cells_widen": (core.cells_widen, (halves(1, 2), two)),
        "cells_inexact": (core.cells_inexact, (words(1, 2**60 + 1), core.NUMBER_U64)),
        "cells_largest": (core.cells_largest, (words(1, 2**60 + 1),)),
        "weighted": (core.weighted, ((words(2, 5), words()), 9, False, (1, 2), words(0, 7), two)),
        "weighted, rounded": (core.weighted, ((words(2, 5), words()), 9, True, (1, 2), words(0, 7), two)),
        "draw": (core.draw, (5, 1, 2, words(0, 7), two)),
        "join_pieces": (core.join_pieces, ([b"ab", b"c"], None, 1, bytearray(6))),
        "join_pieces, placed": (core.join_pieces, ([b"ab", b"c"], words(1, 3), 1, bytearray(6))),
        "number_tokens": (core.number_tokens, (words(0, 2, 3), 8, three, halves(4, 5), half)),
        "lengths_runs_of": (core.lengths_runs_of, (words(2, 4, 5),)),
        "plan_buckets": (core.plan_buckets, ((20, 4, 1, 0), words(5, 4), words(9, 3), (1, 4, 100), True)),
        "bits_set": (core.bits_set, (words(0), 64, words(3, 5))),
        "bits_count": (core.bits_count, (words(3), two)),
        "runs_count": (core.runs_count, (words(7, 5), 3, words(7, 5), words(1, 2), two, two)),
        "runs_place": (core.runs_place, (words(7, 5), of_one, 0, words(0, 1), words(0, 1), into)),
        "json_cut": (core.json_cut, (b'{"t":[1,2]}', b"t", 0, 1)),
        "pack_lengths": (core.pack_lengths, (10, 3, 99, words(7, 3), words(2, 3))),
        "tar_members": (core.tar_members, (tar[:2048], 9)),
        "tar_hash": (core.tar_hash, (b"abcd",)),
        "simd_variants": (core.simd_variants, ()),
    }
    for source in (lines, read, reader(len(LINES), pieces)):
        for views in (False, True):
            found, kind = records(source, bounds, views), f"of {type(source).__name__}, {source is lines}, {views}"
            rows |= {f"Records.{name} {kind}": (getattr(found, name), (1,)) for name in ("locate", "check", "copy")}
            rows[f"Records item {kind}"] = found.__getitem__, (1,)
            rows[f"Records.fitting {kind}"] = found.fitting, ([0, 1], 150)
            rows[f"Records.forget {kind}"] = found.forget, ()
            rows[f"Records.many {kind}"] = found.many, ([0, -1],)
            rows[f"Records.decode {kind}"] = found.decode, ([0, -1], bytes, refuse)
    rows |= {f"ArrayBatch.values {k}": (array_batch.values, (k,)) for k in range(len(array_fields))}
    rows |= {f"JsonBatch.values {k}": (json_batch.values, (k,)) for k in range(len(json_fields))}
    rows |= {f"JsonBatch.shapes {k}": (json_batch.shapes, (k,)) for k in range(len(json_fields))}
    if library := zstd.library():
        rows["Zstd.decode"] = library.decode, (blocks, frames, 0, len(frame), 50, 1 << 20)
    return {name: (function, fresh(args)) for name, (function, args) in rows.items()}


# ---- arguments ------------------------------------------------------------------------------------------------------


def rude(*_):
    raise LookupError("rude")


Rude = type("Rude", (), {f"__{name}__": rude for name in ("len", "getitem", "index", "iter", "call", "repr")})
Liar = type("Liar", (Rude,), {"__len__": lambda _: 3})
WRONG = (None, "x", "", b"", b"\xff" * 24, 0.5, (), [], [0, 1], ValueError, Rude(), Liar(), memoryview(bytes(16))[::2])
WRONG += (-1, *range(10), 16, 63, 64, 2**32 - 1, 2**48, 2**63 - 8, 2**63 - 1, 2**63, NONE, 2**70)


def fresh(args):
    """A copy, whose buffers are all different ones."""
    if isinstance(args, dict):
        return {key: fresh(value) for key, value in args.items()}
    if isinstance(args, tuple | list):
        return type(args)(map(fresh, args))
    return bytearray(args) if isinstance(args, bytearray) else args


def buffers_in(args):
    """All bytearrays in arguments."""
    if isinstance(args, bytearray):
        return [args]
    inner = args.values() if isinstance(args, dict) else args if isinstance(args, tuple | list) else ()
    return [buffer for each in inner for buffer in buffers_in(each)]


def instead_of(value, others):
    """What may stand in place of an argument; `others` are the buffers of the call."""
    yield from WRONG
    if isinstance(value, bytes):
        for at, byte in enumerate(value):
            yield value[:at]
            yield value[:at] + bytes([byte ^ 1 << at % 8]) + value[at + 1 :]
    if isinstance(value, bytearray):
        yield from others
        halved = (value[:-1], value[:-4], value[:-8], value + bytes(4), value + bytes(8))
        turned = (bytes(len(value)), b"\xff" * len(value), value[8:] + value[:8], value[:-8] + b"\xff" * 8)
        yield from map(bytearray, halved + turned)
        yield bytes(value)
        yield memoryview(bytearray(1) + value)[1:]
    if isinstance(value, tuple | list | dict):
        yield from changes(value, others)


def changes(args, others):
    """Arguments of which one, or one inside of it, is another; those with one fewer, and with one more."""
    if isinstance(args, dict):
        for key, value in args.items():
            yield from ({**args, key: other} for other in instead_of(value, others))
            yield {other: args[other] for other in args if other != key}
        return
    for k, value in enumerate(args):
        yield from (type(args)((*args[:k], other, *args[k + 1 :])) for other in instead_of(value, others))
    yield args[:-1]
    yield args + type(args)((None,))


# ---- calls ----------------------------------------------------------------------------------------------------------


def call(function, args):
    return function(**args) if isinstance(args, dict) else function(*args)


def plain(result):
    """A result, such that equal ones are alike."""
    if isinstance(result, memoryview | core.Block):
        return bytes(result)
    if isinstance(result, list | tuple):
        return [plain(each) for each in result]
    return type(result) if type(result).__module__ == "mmapds._native" else result


def answer(function, args, short=None):
    """What a call returns or raises, and what it writes. Nobody holds a buffer afterwards, and those that the call may
    write to are as they were. short: the first allocation that fails, and where they succeed again."""
    held = [(buffer, bytes(buffer)) for buffer in buffers_in(args)]
    if short:
        _testcapi.set_nomemory(*short)
    try:
        found = call(function, args)
    except Exception as error:
        found = error
    if short:
        _testcapi.remove_mem_hooks()
    found = (type(found), str(found)) if isinstance(found, Exception) else plain(found)
    written = [bytes(buffer) for buffer, _ in held]
    for buffer, before in held:
        buffer.append(0)  # BufferError if somebody holds it
        buffer.pop()
        buffer[:] = before
    return found, written


def short_of_memory(folder):
    """Make every allocation of every call fail, one after another: it raises MemoryError, and goes well afterwards."""
    spec = importlib.util.spec_from_file_location(core.__name__, core.__file__)

    def load():
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return len(vars(module))

    rows = table(folder)
    if sys.version_info < (3, 13):  # whose dict crashes where a type is short of memory
        rows["module"] = load, ()
    for name, (function, args) in rows.items():
        wanted = answer(function, args)
        allocation = fine = 0
        while fine < 9:  # in a row: Python does without some allocations
            print(name, allocation, flush=True)
            found = answer(function, args, (allocation, allocation + 1))
            fine = fine + 1 if found == wanted else 0
            assert fine or found[0][0] is MemoryError or python_failed(*found[0]), found
            allocation += 1
        assert answer(function, args) == wanted, name


def python_failed(kind, message):
    """Whether Python itself forgot to set an exception: where it calls a function in Python, or loads a module."""
    return kind is SystemError and not re.match("<built-in|<class|<method", message)


if __name__ == "__main__":
    import _testcapi

    short_of_memory(sys.argv[1])
