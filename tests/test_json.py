"""The JSON measurer and validator against orjson, on what is made here: nested, escaped, duplicated, damaged.

MMAPDS_JSON_CASES sets how many cases are made.
"""

import os
import random
import re
import struct
from pathlib import Path

import orjson
import pytest

from mmapds import _native
from mmapds.formats.expressions import Expression

VARIANTS = _native.simd_variants()
CASES = int(os.environ.get("MMAPDS_JSON_CASES", "10000"))
OK, MISSING, TYPE, INVALID = range(4)
NUMBER, BYTES, CHARS, ITEMS = (
    _native.MEASURE_NUMBER,
    _native.MEASURE_BYTES,
    _native.MEASURE_CHARS,
    _native.MEASURE_ITEMS,
)
KEYS = ["a", "b", "c", "len", "source_len", "", 'a"b', "x\\y", "é", "😀", "a\nb"]
PATHS = [(key,) for key in KEYS] + [("a", "b"), ("b", "a"), ("a", "a"), ("a", "b", "c"), ("c", "len"), ("é", "😀")]
INTEGERS = [0, 1, 7, 123, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -1, -(2**63), -(2**63) - 1]
DAMAGE = [
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"0",
    b"-",
    b".",
    b"e",
    b"\0",
    b"\xff",
    b"\xc3",
    b"\t",
    b"\\u",
]


def expected(record, measure, path):
    """What orjson and a few lines of Python say: (status, number)."""
    value = orjson.loads(record)
    for depth, key in enumerate(path):
        if value is None and depth:
            return MISSING, None
        if not isinstance(value, dict):
            return TYPE, None
        if key not in value:
            return MISSING, None
        value = value[key]
    if value is None:
        return MISSING, None
    if measure == NUMBER:
        return (OK, value) if type(value) in (int, float) else (TYPE, None)
    if measure == ITEMS:
        return (OK, len(value)) if isinstance(value, list) else (TYPE, None)
    if not isinstance(value, str):
        return TYPE, None
    return OK, len(value) if measure == CHARS else len(value.encode())


def measured(variant, record, measure, path):
    keys = tuple(key.encode() for key in path)
    status, at, kind, bits = _native.measure_record(variant, ((measure, keys),), record)
    assert 0 <= at <= len(record)
    return status, struct.unpack("<" + "Qqd"[kind], struct.pack("<Q", bits))[0] if status == OK else None


class Maker:
    """Makes JSON text of every shape."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def space(self):
        return self.random.choice([""] * 6 + [" ", "\t", "  ", "\r"])

    def key(self):
        out = ""
        for char in self.random.choice(KEYS):
            if char in '"\\\n' or self.random.random() < 0.2:
                units = char.encode("utf-16-be")
                out += "".join(f"\\u{int.from_bytes(units[i : i + 2], 'big'):04x}" for i in range(0, len(units), 2))
            else:
                out += char
        return f'"{out}"'

    def string(self):
        pieces = list("abcdefgh :,{}[]") * 3 + list("éß漢😀") * 2
        pieces += ["\\n", '\\"', "\\\\", "\\u0041", "\\ud83d\\ude00", "\\u00e9", "\\/"]
        return '"' + "".join(self.random.choices(pieces, k=self.random.choice([0, 1, 2, 5, 20, 70, 200]))) + '"'

    def digits(self, most):
        return "".join(self.random.choices("0123456789", k=self.random.randrange(1, most)))

    def number(self):
        kind = self.random.randrange(6)
        if kind == 0:
            return str(self.random.choice(INTEGERS))
        if kind == 1:
            return repr(self.random.random() * 10 ** self.random.randrange(-20, 20))
        if kind == 2:
            value = struct.unpack("d", self.random.randbytes(8))[0]
            return repr(value) if value == value and abs(value) != float("inf") else "0"
        if kind == 3:
            exponent = self.random.choice(["", "e5", "E-300", "e+290", "e-10", "e308"])
            return "1" + self.digits(self.random.choice([30, 900])) + "." + self.digits(30) + exponent
        return str(self.random.randrange(5000))

    def value(self, depth):
        kind = self.random.random() * (0.6 if depth > 4 else 1)
        if kind < 0.25:
            return self.number()
        if kind < 0.5:
            return self.string()
        if kind < 0.6:
            return self.random.choice(["true", "false", "null"])
        if kind < 0.8:
            return "[" + self.several(lambda: self.value(depth + 1)) + "]"
        return self.object(depth + 1)

    def object(self, depth=0):
        return "{" + self.several(lambda: f"{self.key()}{self.space()}:{self.space()}{self.value(depth)}") + "}"

    def several(self, make):
        count = self.random.choice([0, 0, 1, 2, 3, 9])
        return self.space() + ",".join(self.space() + make() + self.space() for _ in range(count))

    def damaged(self, record):
        record = bytearray(record)
        for _ in range(self.random.choice([1, 1, 2])):
            at = self.random.randrange(len(record) + 1)
            kind = self.random.randrange(4)
            if kind == 0:
                del record[at : at + 1]
            elif kind == 1:
                record[at:at] = self.random.choice(DAMAGE)
            elif kind == 2:
                record[at : at + 1] = self.random.randbytes(1)
            else:
                del record[at:]
        return bytes(record).replace(b"\n", b" ")


def is_json(record):
    try:
        orjson.loads(record)
    except orjson.JSONDecodeError:
        return False
    return True


def test_it_agrees_with_orjson():
    make = Maker(0)
    seen = dict.fromkeys([OK, MISSING, TYPE, INVALID], 0)
    for _ in range(CASES):
        text = make.object() if make.random.random() < 0.95 else make.value(0)
        record = (make.space() + text + make.space()).encode()
        if make.random.random() < 0.4:
            record = make.damaged(record)
        good = is_json(record)
        measure, path = make.random.choice([NUMBER, BYTES, CHARS, ITEMS]), make.random.choice(PATHS)
        wanted = expected(record, measure, path) if good else (INVALID, None)
        seen[wanted[0]] += 1
        for variant in VARIANTS:
            assert (_native.json_error(variant, record) is None) == good, record
            found = measured(variant, record, measure, path)
            if good:
                assert (found, type(found[1])) == (wanted, type(wanted[1])), (variant, record, measure, path)
    assert min(seen.values()) > CASES / 200


# Each names a rule. All are checked alone, inside an array, and as a field of an object.
TEXTS = [
    *("0", "-0", "-0.0", "1E5", "1e-400", "0e1", "0.1e0001", "1" * 309 + ".0", "9" * 30, "18446744073709551616"),
    *("01", "1.", ".5", "-", "+1", "1e", "1e+", "0x1", "1e999", "-1e999", "9" * 400, "1_0"),
    *("NaN", "Infinity", "-Infinity", "true", "false", "null", "tru", "TRUE", "nul", "truee", "nullnull"),
    *('"\\ud83d\\ude00"', '"\\u0000"', '"\\/"', '"\x7f"', '"\ufdd0"', '"\U0010ffff"', '"\\uFFFF"'),
    *('"\\ud800"', '"\\udc00"', '"\\ud83d\\u0041"', '"\\ud83dx"', '"\\x"', '"\\u12"', '"\\u00g0"', '"a\tb"'),
    *('"', '"\\"', '""""', "[]", "[[]]", "[,1]", "[1,]", "[1 2]", "[", "]", "{]", "[}", "{", "}", "{}", "{}{}"),
    *('{"a":1}', '{"a":1,}', '{"a" 1}', '{"a"}', "{1:1}", "{'a':1}", '{"a":1 "b":2}', '{"a"::1}', "[1]x"),
    *("", " ", "\ufeff1", "1 2", "1,", "//1", "/**/1", "\x0c1", "1\x00", "a", "\\"),
]
RAW = [b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\x80"', b'"\xf4\x90\x80\x80"', b'"\xe2\x82"', b"\xff", b"\0"]


@pytest.mark.parametrize("text", [*(text.encode() for text in TEXTS), *RAW], ids=repr)
@pytest.mark.parametrize("variant", VARIANTS)
def test_rules(variant, text):
    for record in (
        text,
        b"[" + text + b"]",
        b'{"a":' + text + b"}",
        b'{"b":[' + text + b',1],"a":1}',
        b" " * 70 + text,
    ):
        assert (_native.json_error(variant, record) is None) == is_json(record), record
        if is_json(record):
            for measure in (NUMBER, BYTES, CHARS, ITEMS):
                wanted = expected(record, measure, ("a",))
                assert measured(variant, record, measure, ("a",)) == wanted, record


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"a":', "}")])
def test_depth(variant, begin, end):
    for depth in (1023, 1024, 1025, 100_000):
        record = (begin * depth + "1" + end * depth).encode()
        assert (_native.json_error(variant, record) is None) == is_json(record) == (depth <= 1024)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_offset_of_a_block(variant):
    """Keys, escapes and quotes on both sides of each 64-byte boundary."""
    for padding in range(200):
        for text in (
            '"len":7',
            '"l\\u0065n":7',
            '"x\\\\":":\\"","len" : 7',
            '"len":1,"len":7',
            '"x":{"len":1},"len":7',
        ):
            record = ('{"pad":"' + "p" * padding + '",' + text + "}").encode()
            assert measured(variant, record, NUMBER, ("len",)) == (OK, 7), record
        quotes = ('{"a":"' + "\\" * 2 * padding + '\\"","len":[1,[2,3],"a,b"]}').encode()
        assert measured(variant, quotes, ITEMS, ("len",)) == (OK, 3)
        assert measured(variant, quotes, CHARS, ("a",)) == (OK, padding + 1)


def test_expressions():
    assert Expression.parse("n", "a.b") == ("a.b", NUMBER, (b"a", b"b"))
    assert Expression.parse("n", r"chars(a\.b)") == (r"chars(a\.b)", CHARS, (b"a.b",))
    assert Expression.parse("n", "bytes()").measure == _native.MEASURE_RECORD
    for text in ("", "a..b", "words(a)", "chars()", ".".join("a" * 17)):
        with pytest.raises(ValueError, match=r"^column 'n': expected a path.* found .*'") as refused:
            Expression.parse("n", text)
        assert repr(text) in str(refused.value)


def rows_of(record, extra):
    """The rows of the examples in csrc/json.c, from what they mean."""
    escaped = {match.start() + 1 for match in re.finditer(r"\\.", record)}
    quotes = {i for i, byte in enumerate(record) if byte == '"'} - escaped
    inside = {i for i in range(len(record)) if sum(quote <= i for quote in quotes) % 2}
    outside = {byte: {i for i, found in enumerate(record) if found in byte} - inside for byte in ("{[}]", ":")}
    after_quote = {quote + 1 for quote in quotes}
    after_extra = {i + 2 for i, byte in enumerate(record) if byte == extra}
    rows = {
        "quote": {i for i, byte in enumerate(record) if byte == '"'},
        "backslash": {i for i, byte in enumerate(record) if byte == "\\"},
        "escaped": escaped,
        "quote & ~escaped": quotes,
        "inside": inside,
        "brackets & ~inside": outside["{[}]"],
        "colon & ~inside": outside[":"],
        "after a quote": after_quote,
        "n, two bytes before": after_extra,
        "visited": {i for i in outside[":"] if i not in after_quote or i in after_extra},
    }
    return {name: "".join(".1"[i in bits] for i in range(len(record))) for name, bits in rows.items()}


def test_the_worked_examples_in_json_c_are_true():
    lines = (Path(__file__).parent.parent / "csrc" / "json.c").read_text().split("*/")[0].splitlines()
    rows = [re.match(r" \*     (\S.*?) {2,}(\S+)", line) for line in lines]
    checked, record = 0, ""
    for name, text in (row.groups() for row in rows if row):
        if name == "record":
            record = text
            for variant in VARIANTS:
                assert measured(variant, record.encode(), NUMBER, ("len",)) == (OK, 42)
        elif set(text) <= set(".1"):
            assert text == rows_of(record, "n")[name], name
            checked += 1
    assert checked == 11
    visits = [line.split()[2:4] for line in lines if line.startswith(" *     byte ")]
    record = '{"id":"a:\\"}","n":[7],"len":42}'
    structure = "brackets & ~inside", "colon & ~inside"
    bits = sorted(i for name in structure for i, bit in enumerate(rows_of(record, "n")[name]) if bit == "1")
    assert visits == [[str(i), record[i]] for i in bits]
