"""JSON text of every shape, records for `mmapds.Fields`, and what orjson and NumPy make of them."""

import math
import random
import struct
from contextlib import suppress

import numpy as np
import orjson

import mmapds

SCHEMA = {
    "ids": "int32",
    "small": "int8",
    "large": ("uint64", (None,)),
    "long": "int64",
    "x": "float32",
    "y": ("float64", (None, 2)),
    "half": "float16",
    "flags": "bool",
    "rows": ("int16", "ragged"),
    "meta.seconds": "float64",
    "meta.n": ("uint8", ()),
    "text": "str",
}
DEFAULTS = {"ids": [7, 8], "x": 0.5, "rows": [[1], []], "meta.n": 3, "text": "none", "y": [[1, 2]], "flags": True}

KEYS = ["a", "b", "c", "len", "source_len", "", 'a"b', "x\\y", "é", "😀", "a\nb"]
OTHER_KEYS = ["id", "idss", "tex", "é漢", "a.b", "me\\ta", "", "x" * 40, "rows ", "large2"]
INTEGERS = [0, 1, 7, 123, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -1, -(2**63), -(2**63) - 1]
DECIMALS = ["65504", "65519.99", "5.9604644775390625e-8", "2.98e-8", "1e-400", "0.1", "-0", "-0.0"]
BAD = (
    "1.5 1e2 1e999 9223372036854775808 18446744073709551616 -9223372036854775809 01 1. .5 NaN Infinity null [1] {} true"
)
BAD_NUMBERS = [*BAD.split(), '"1"', "-", "+1", "0x1", "65520", "3.4028236e38", "256", "128", "1e400", "-1e999"]
DAMAGE = [*rb'" \ { } [ ] , : 0 1 - . e \u null'.split(), b"\0", b"\xff", b"\xc3", b"\t", b" ", b"\n"]


class Text:
    """Makes JSON text of every shape."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.choice = self.random.choice

    def chance(self, share):
        return self.random.random() < share

    def space(self):
        return self.choice([""] * 6 + [" ", "\t", "  ", "\r"])

    def key(self, word, escaped):
        out = ""
        for char in word:
            units = char.encode("utf-16-be").hex()
            escapes = "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
            out += escapes if char in '"\\\n' or self.chance(escaped) else char
        return f'"{out}"'

    def string(self):
        pieces = list("abcdefgh :,{}[]") * 3 + list("éß漢😀") * 2
        pieces += ["\\n", '\\"', "\\\\", "\\u0041", "\\ud83d\\ude00", "\\u00e9", "\\/"]
        return '"' + "".join(self.random.choices(pieces, k=self.choice([0, 1, 2, 5, 20, 70, 200]))) + '"'

    def number(self):
        digits = "".join(self.random.choices("0123456789", k=self.choice([1, 5, 30, 900])))
        value = struct.unpack("d", self.random.randbytes(8))[0]
        kinds = [str(self.choice(INTEGERS)), str(self.random.randrange(5000)), self.choice(DECIMALS)]
        kinds += [repr(self.random.random() * 10 ** self.random.randrange(-20, 20))]
        kinds += [repr(value) if math.isfinite(value) else "0"]
        kinds += [f"1{digits}.{digits[:30]}{self.choice(['', 'e5', 'E-300', 'e+290', 'e-10', 'e308'])}"]
        return self.choice(kinds)

    def value(self, depth=0):
        kind = self.random.random() * (0.6 if depth > 4 else 1)
        if kind < 0.5:
            return self.number() if kind < 0.25 else self.string()
        if kind < 0.6:
            return self.choice(["true", "false", "null"])
        return self.listed(lambda: self.value(depth + 1)) if kind < 0.8 else self.object(depth + 1)

    def listed(self, make, count=None, ends="[]"):
        count = self.choice([0, 0, 1, 2, 3, 9]) if count is None else count
        entries = ",".join(self.space() + make() + self.space() for _ in range(count))
        return f"{ends[0]}{self.space()}{entries}{ends[1]}"

    def object(self, depth=0):
        return self.listed(lambda: self.member(self.choice(KEYS), self.value(depth), 0.2), ends="{}")

    def member(self, word, text, escaped=0.005):
        return f"{self.key(word, escaped)}{self.space()}:{self.space()}{text}"

    def damaged(self, record):
        data = bytearray(record)
        for _ in range(self.choice([1, 1, 2])):
            at = self.random.randrange(len(data) + 1)
            end = self.choice([at, at + 1, at + 3, len(data)])
            data[at:end] = self.choice([b"", self.choice(DAMAGE), self.random.randbytes(1)])
        return bytes(data)


class Maker(Text):
    """Makes records of that schema, good ones and bad ones."""

    def record(self):
        """Return a record; in a third of them something is not as the schema wants it."""
        bad, fields, members, inside = self.chance(0.35), list(SCHEMA), [], []
        if self.chance(0.5):
            self.random.shuffle(fields)
        for name in fields:
            for _ in range(self.choice([0, 1, 1, 1, 1] if name in DEFAULTS else [1] * 20 + [2])):
                text = "null" if bad and self.chance(0.03) else self.field(SCHEMA[name], bad and self.chance(0.2))
                top, _, below = name.partition(".")
                (inside if below else members).append(self.member(below or top, text))
        meta = self.choice(["null", "[]", "3", '"n"', "{}"]) if bad and self.chance(0.05) else f"{{{','.join(inside)}}}"
        others = [(self.choice(OTHER_KEYS), self.value()) for _ in range(self.random.randint(0, 2))]
        for word, text in [("meta", meta), *others]:
            members.insert(self.random.randint(0, len(members)), self.member(word, text))
        comma = self.choice([",", ", ", " , ", ",\t"])
        record = f"{self.space()}{{{comma.join(members)}{self.space()}}}".encode()
        return self.damaged(record) if bad and self.chance(0.4) else record

    def field(self, what, bad):
        dtype, shape = what if isinstance(what, tuple) else (what, None)
        if bad and self.chance(0.4):
            return self.value()
        if dtype == "str":
            return self.string()
        if shape == "ragged":
            return self.listed(lambda: self.nested(dtype, [None], bad))
        if shape is None:
            shape = self.choice([(), (None,), (None,), (None,), (None, None), (None, 1, 2)])
        inner = self.random.randint(0, 5)  # of all rows
        return self.nested(dtype, [*shape[:1], *(inner if axis is None else axis for axis in shape[1:])], bad)

    def nested(self, dtype, sizes, bad):
        if not sizes:
            return self.entry(dtype, bad and self.chance(0.3))
        size = self.choice([0, 1, 2, 3, 9, 20] if len(sizes) == 1 else [0, 1, 3]) if sizes[0] is None else sizes[0]
        return self.listed(lambda: self.nested(dtype, sizes[1:], bad), size + (bad and self.chance(0.1)))

    def entry(self, dtype, bad):
        if bad or dtype == "bool":
            return self.choice(BAD_NUMBERS if bad else ["true", "false"])
        if dtype.startswith("float"):
            long = f"{self.random.randint(0, 10**25)}e-{self.random.randint(22, 60)}"
            small = repr(self.random.uniform(-1, 1))
            return self.choice([small, long, str(self.random.randint(-1000, 60000)), self.choice(DECIMALS)])
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        digits = 10 ** self.random.randint(1, len(str(high)))
        drawn = max(low, min(high, self.random.randint(-digits, digits)))
        return str(self.choice([drawn] * 5 + [low, high, low + 1, 0]))


class RefusedError(Exception):
    """A record that should be refused."""


def check(holds):
    if not holds:
        raise RefusedError


def expected(record):
    """Return what a record is as a sample: name to an array, a number or a string, or to a list of arrays."""
    try:
        value = orjson.loads(record)
    except orjson.JSONDecodeError:
        raise RefusedError from None
    check(isinstance(value, dict))
    return {name: field_of(value, name, what) for name, what in SCHEMA.items()}


def field_of(value, name, what):
    for key in name.split("."):
        check(value is None or isinstance(value, dict))
        value = None if value is None else value.get(key)
    if value is None:
        check(name in DEFAULTS)
        value = DEFAULTS[name]
    dtype, shape = what if isinstance(what, tuple) else (what, None)
    if dtype == "str":
        check(isinstance(value, str))
        return value
    if shape == "ragged":
        check(isinstance(value, list) and all(isinstance(row, list) for row in value))
        return [array_of(row, dtype, (None,)) for row in value]
    array = array_of(value, dtype, shape)
    return array.item() if shape is None and not array.shape else array


def array_of(value, dtype, wanted):
    cells = np.array(value, object)  # rows of several lengths stay lists, which are not numbers
    if cells.shape == (0,) and wanted is not None and len(wanted) > 1:
        cells = cells.reshape(0, *(axis or 0 for axis in wanted[1:]))
    shape = cells.shape
    check(len(shape) <= 8 and (wanted is None or len(wanted) == len(shape)))
    check(all(axis in (None, size) for axis, size in zip(wanted or shape, shape, strict=True)))
    kind = np.dtype(dtype).kind
    check({type(each) for each in cells.flat} <= {"b": {bool}, "f": {int, float}}.get(kind, {int}))
    if kind in "iu":
        check(all(np.iinfo(dtype).min <= each <= np.iinfo(dtype).max for each in cells.flat))
    with np.errstate(over="ignore"):
        array = np.array([np.float64(each) for each in cells.flat] if kind == "f" else cells.ravel()).astype(dtype)
    check(kind != "f" or np.isfinite(array).all())
    return array.reshape(shape)


def compare(seed, count):
    """Compare `count` generated records with orjson and NumPy; return how many were good."""
    make, good, fields = Maker(seed), 0, mmapds.Fields(SCHEMA, defaults=DEFAULTS)
    for _ in range(count):
        record, wanted, found = make.record(), None, None
        with suppress(RefusedError):
            wanted = expected(record)
        with suppress(mmapds.DecodeError):
            found = fields(record)
        assert equal(found, wanted), (record, found, wanted)
        good += wanted is not None
    return good


BATCHED = {
    "ids": "int32",
    "feats": ("float32", (None, 3)),
    "n": "int16",
    "exact": ("float32", ()),
    "flag": "bool",
    "text": "str",
    "bf": ("bfloat16", (None,)),
    "rows": ("int16", "ragged"),
    "big": "uint64",
}


def records(count, seed=0):
    """Records of that schema."""
    generator = np.random.default_rng(seed)
    for number in range(count):
        yield {
            "ids": generator.integers(-5, 100_000, int(generator.integers(0, 60))).tolist(),
            "feats": generator.standard_normal((int(generator.integers(0, 9)), 3)).tolist(),
            "n": number,
            "exact": number / 7,
            "flag": bool(number % 3),
            "text": f"é{number}",
            "bf": generator.standard_normal(int(generator.integers(1, 5))).tolist(),
            "rows": [[1, 2], [], [number]],
            "big": 2**63 - 1 - number,
        }


def dataset(path, records, fields, **options):
    """Write records and open them."""
    lines = [record if isinstance(record, bytes) else orjson.dumps(record) for record in records]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return mmapds.open(path, decode=fields, build=True, **options)


def equal(one, other):
    """Whether two batches or samples are equal: types, dtypes, shapes and numbers, floats by their bits."""
    if hasattr(one, "dtype"):
        return type(one) is type(other) and one.dtype == other.dtype and repr(one.tolist()) == repr(other.tolist())
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(equal(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and repr(one) == repr(other)
