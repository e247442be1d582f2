"""JSON records for `mmapds.Fields`, and what orjson and NumPy make of them."""

import math
import random
import struct

import numpy as np
import orjson
import torch

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
LIMITS = {"int": lambda bits: (-(2 ** (bits - 1)), 2 ** (bits - 1)), "uint": lambda bits: (0, 2**bits)}


class RefusedError(Exception):
    """A record that should be refused."""


def expected(record, schema=SCHEMA, defaults=DEFAULTS):
    """Return what a record is as a sample: name to (shape or None, numbers) or a string."""
    try:
        value = orjson.loads(record)
    except orjson.JSONDecodeError:
        raise RefusedError("not JSON") from None
    if not isinstance(value, dict):
        raise RefusedError("not an object")
    return {name: field_of(value, name, what, defaults) for name, what in schema.items()}


def field_of(value, name, what, defaults):
    for key in name.split("."):
        if value is not None and not isinstance(value, dict):
            raise RefusedError(name)
        value = None if value is None else value.get(key)
    if value is None:
        if name not in defaults:
            raise RefusedError(name)
        value = defaults[name]
    if what == "str":
        if not isinstance(value, str):
            raise RefusedError(name)
        return value
    dtype, shape = what if isinstance(what, tuple) else (what, None)
    if shape == "ragged":
        if not isinstance(value, list) or not all(isinstance(row, list) for row in value):
            raise RefusedError(name)
        return [array_of(row, dtype, (None,)) for row in value]
    return array_of(value, dtype, shape)


def array_of(value, dtype, wanted):
    shape = shape_of(value)
    if shape == (0,) and wanted is not None and len(wanted) > 1:
        shape = (0, *(axis or 0 for axis in wanted[1:]))
    fits = wanted is None or (
        len(wanted) == len(shape) and all(axis in (None, size) for axis, size in zip(wanted, shape, strict=True))
    )
    if not fits or len(shape) > 8:
        raise RefusedError("shape")
    numbers = [number_of(each, dtype) for each in leaves(value)]
    return np.array(numbers, dtype).reshape(shape)


def shape_of(value):
    if not isinstance(value, list):
        return ()
    inside = {shape_of(each) for each in value}
    if len(inside) > 1:
        raise RefusedError("ragged")
    return (len(value), *(inside.pop() if inside else ()))


def leaves(value):
    if isinstance(value, list):
        for each in value:
            yield from leaves(each)
    else:
        yield value


def number_of(value, dtype):
    if dtype == "bool":
        if type(value) is not bool:
            raise RefusedError("bool")
        return value
    if type(value) not in (int, float):
        raise RefusedError("number")
    if dtype.startswith("float"):
        with np.errstate(over="ignore"):
            rounded = np.float64(value).astype(dtype)
        if not np.isfinite(rounded):
            raise RefusedError("range")
        return rounded
    bits = int(dtype.lstrip("uint"))
    low, high = LIMITS[dtype.rstrip("0123456789")](bits)
    if type(value) is not int or not low <= value < high:
        raise RefusedError("range")
    return value


def same(found, wanted, what):
    """Whether a value that was read is the one that was expected, floats by their bits."""
    if isinstance(wanted, str):
        return found == wanted and type(found) is str
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(
            same(a, b, (what[0], (None,))) for a, b in zip(found, wanted, strict=True)
        )
    if not isinstance(what, tuple) and wanted.shape == ():
        return (
            type(found) in (int, float, bool)
            and type(found) is type(wanted.item())
            and _bits(found) == _bits(wanted.item())
        )
    return found.dtype == wanted.dtype and found.shape == wanted.shape and found.tobytes() == wanted.tobytes()


def _bits(number):
    return struct.pack("<d", number) if isinstance(number, float) else number


class Maker:
    """Makes records of every shape, good ones and bad ones."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def record(self):
        """Return a record; in a third of them something is not as the schema wants it."""
        bad = self.random.random() < 0.35
        fields = [(name, self.value(what, bad and self.random.random() < 0.2)) for name, what in SCHEMA.items()]
        if self.random.random() < 0.5:
            self.random.shuffle(fields)
        members, inside = [], []
        for name, text in fields:
            optional = name in DEFAULTS
            if optional and self.random.random() < 0.2:
                continue
            if bad and self.random.random() < 0.03:
                text = "null"
            top, _, below = name.partition(".")
            (inside if below else members).append(self.member(below or top, text))
            if self.random.random() < 0.05:
                (inside if below else members).append(self.member(below or top, self.value(SCHEMA[name], False)))
        meta = "{" + self.comma().join(inside) + "}"
        if bad and self.random.random() < 0.05:
            meta = self.random.choice(["null", "[]", "3", '"n"', "{}"])
        members.insert(self.random.randint(0, len(members)), self.member("meta", meta))
        for _ in range(self.random.randint(0, 2)):
            members.insert(self.random.randint(0, len(members)), self.member(self.word(), self.other(0)))
        record = (self.space() + "{" + self.comma().join(members) + self.space() + "}").encode()
        return self.damaged(record) if bad and self.random.random() < 0.4 else record

    def member(self, key, text):
        if key.isascii() and key.isalpha() and self.random.random() < 0.03:
            at = self.random.randrange(len(key))
            key = f"{key[:at]}\\u{ord(key[at]):04x}{key[at + 1 :]}"
        return f'"{key}"{self.space()}:{self.space()}{text}'

    def space(self):
        return self.random.choice([""] * 8 + [" ", " ", "\t", "  ", "\r"])

    def comma(self):
        return self.random.choice([",", ", ", " , ", ",\t", ",  "])

    def word(self):
        return self.random.choice(["id", "idss", "tex", "é漢", "a.b", "me\\\\ta", "", "x" * 40, "rows ", "large2"])

    def value(self, what, bad):
        dtype, shape = what if isinstance(what, tuple) else (what, None)
        if bad and self.random.random() < 0.4:
            return self.other(0)
        if dtype == "str":
            return self.string()
        if shape == "ragged":
            return self.listed([self.row(dtype, bad) for _ in range(self.random.randint(0, 4))])
        if shape is None:
            shape = self.random.choice([(), (None,), (None,), (None,), (None, None), (None, 1, 2)])
        sizes = [self.random.randint(0, 5) if axis is None else axis for axis in shape]
        if len(shape) == 1:
            return self.row(dtype, bad)
        return self.nested(dtype, sizes, bad)

    def row(self, dtype, bad):
        count = self.random.choice([0, 1, 2, 3, 9, 20, 60])
        return self.listed([self.number(dtype, bad and self.random.random() < 0.1) for _ in range(count)])

    def nested(self, dtype, sizes, bad):
        if not sizes:
            return self.number(dtype, bad)
        size = sizes[0] + (bad and self.random.random() < 0.1)
        return self.listed([self.nested(dtype, sizes[1:], bad and self.random.random() < 0.2) for _ in range(size)])

    def listed(self, items):
        return f"[{self.space()}{self.comma().join(items)}{self.space()}]"

    def number(self, dtype, bad):
        if bad:
            return self.random.choice(BAD_NUMBERS)
        if dtype == "bool":
            return self.random.choice(["true", "false"])
        if dtype.startswith("float"):
            return self.decimal(dtype)
        low, high = LIMITS[dtype.rstrip("0123456789")](int(dtype.lstrip("uint")))
        kind = self.random.random()
        if kind < 0.2:
            return str(self.random.choice([low, high - 1, low + 1, 0, 1]))
        digits = self.random.randint(1, len(str(high)))
        return str(max(low, min(high - 1, self.random.randint(-(10**digits), 10**digits))))

    def decimal(self, dtype):
        kind, limit = self.random.random(), float(np.finfo(dtype).max)
        if kind < 0.3:
            return repr(self.random.uniform(-1, 1))
        if kind < 0.5:
            return str(self.random.randint(-1000, 60000))
        if kind < 0.6:
            number = struct.unpack("<d", self.random.randbytes(8))[0]
            return repr(number) if math.isfinite(number) and abs(number) < limit * 0.99 else "-0.0"
        if kind < 0.7:
            return f"{self.random.randint(0, 10**25)}e-{self.random.randint(22, 60)}"
        if kind < 0.8:
            return self.random.choice(["65504", "65519.99", "5.9604644775390625e-8", "2.98e-8", "1e-400", "0.1", "-0"])
        return f"{self.random.uniform(-100, 100):.{self.random.randint(1, 25)}f}"

    def string(self):
        pieces = [
            "abc",
            "é",
            "漢字",
            "😀",
            "\\n",
            '\\"',
            "\\\\",
            "\\u00e9",
            "\\ud83d\\ude00",
            " [1, 2] ",
            "{:}",
            "x" * 70,
        ]
        return '"' + "".join(self.random.choices(pieces, k=self.random.randint(0, 6))) + '"'

    def other(self, depth):
        kind = self.random.randrange(8 if depth < 3 else 5)
        if kind < 3:
            return self.random.choice(["1", "-2.5", "true", "null", "1e5", "0.1", "123456789012", "false"])
        if kind < 5:
            return self.string()
        if kind == 5:
            members = [self.member(self.random.choice(["ids", "text", "n"]), self.other(depth + 1)) for _ in range(2)]
            return "{" + self.comma().join(members) + "}"
        return self.listed([self.other(depth + 1) for _ in range(self.random.randint(0, 4))])

    def damaged(self, record):
        data = bytearray(record)
        for _ in range(self.random.randint(1, 2)):
            at = self.random.randrange(len(data))
            kind = self.random.randrange(4)
            if kind == 0:
                del data[at : at + self.random.randint(1, 3)]
            elif kind == 1:
                data[at:at] = self.random.choice(PIECES)
            elif kind == 2:
                data[at] = self.random.randrange(256)
            else:
                del data[at:]
            if not data:
                return b"{"
        return bytes(data)


BAD_NUMBERS = [
    *(
        "1.5",
        "1e2",
        "1e999",
        "-1e999",
        "9223372036854775808",
        "18446744073709551616",
        "-9223372036854775809",
        "01",
        "1.",
        ".5",
    ),
    *(
        "NaN",
        "Infinity",
        "null",
        '"1"',
        "[1]",
        "{}",
        "true",
        "-",
        "+1",
        "0x1",
        "65520",
        "3.4028236e38",
        "256",
        "128",
        "1e400",
    ),
]
PIECES = [
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b":",
    b'"',
    b"\\",
    b" ",
    b"-",
    b"0",
    b"1",
    b".",
    b"e",
    b"\xff",
    b"\0",
    b"\n",
    b"null",
]


def compare(seed, count, variant_fields=None):
    """Compare `count` generated records with orjson and NumPy; return how many were good."""
    make, good = Maker(seed), 0
    fields = variant_fields or mmapds.Fields(SCHEMA, defaults=DEFAULTS)
    for _ in range(count):
        record = make.record()
        try:
            wanted = expected(record)
        except RefusedError:
            wanted = None
        try:
            found = fields(record)
        except mmapds.DecodeError:
            found = None
        assert (found is None) == (wanted is None), record
        if wanted is not None:
            good += 1
            assert list(found) == list(wanted)
            for name, what in SCHEMA.items():
                assert same(found[name], wanted[name], what), (record, name, found[name], wanted[name])
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
    """Whether two batches or samples are equal: types, dtypes, shapes and numbers."""
    if isinstance(one, torch.Tensor | np.ndarray):
        return type(one) is type(other) and one.dtype == other.dtype and one.tolist() == other.tolist()
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and one == other
