"""The scanner of lines, the JSON measurer and validator, and decimal numbers, against plain Python and orjson.

Every SIMD variant is held to the same oracle. MMAPDS_JSON_CASES sets how many texts are made.
"""

import json
import math
import operator
import os
import random
import re
import struct
from fractions import Fraction
from functools import reduce
from itertools import product

import numpy as np
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mmapds import _native
from mmapds.formats.expressions import Expression
from tests.support import oracle
from tests.support.files import ROOT
from tests.support.json_records import KEYS, Text

VARIANTS = _native.simd_variants()
CASES = int(os.environ.get("MMAPDS_JSON_CASES", "4000"))
OK, PARTIAL, MISSING, TYPE, INVALID = range(5)
NUMBER, BYTES, CHARS, ITEMS = MEASURES = (
    _native.MEASURE_NUMBER,
    _native.MEASURE_BYTES,
    _native.MEASURE_CHARS,
    _native.MEASURE_ITEMS,
)
PATHS = [(key,) for key in KEYS] + [("a", "b"), ("b", "a"), ("a", "a"), ("a", "b", "c"), ("c", "len"), ("é", "😀")]
SUMS = [
    ("a", None),
    ("a", None, "b"),
    ("b", None, 'a"b', "c"),
    ("a", "b", None),
    ("é", None, "é"),
    ("c", "a", None, "😀"),
]


# ---- where lines begin -------------------------------------------------------------------------------------------


def scan(variant, data, cuts=()):
    """Scan `data` in pieces and return the starts and the number of newlines."""
    found, newlines, pending = [], 0, 0
    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        out = np.empty((end - begin) // 2 + 2, np.uint64)
        count, pending, more = _native.scan_lines(variant, data[begin:end], begin, pending, out)
        found += out[:count].tolist()
        newlines += more
    return found, newlines


def test_lines_of_every_length_and_alignment():
    assert (VARIANTS[-1], _native.SIMD in VARIANTS) == ("portable", True)
    generator = np.random.default_rng(0)
    for length, alignment in product(range(131), range(32)):
        data = generator.choice(list(b"\n\n \r\tab\x00\x0a\xff"), size=length + 32).astype(np.uint8)[alignment:][
            :length
        ]
        wanted = [start - 2 for start in oracle.starts(b"x\n" + data.tobytes())[1:]]  # no byte order mark at the front
        for variant in VARIANTS:
            assert scan(variant, memoryview(data)) == (wanted, int((data == 10).sum())), (variant, length, alignment)


PIECES = st.sampled_from([b"\n", b"\r\n", b" ", b"\t", b"\r", b"a", b"\x00", b"\xff", b"{}" * 40])


@given(data=st.lists(PIECES).map(b"".join), cuts=st.lists(st.integers(0, 400), max_size=5))
@example(data=b"\n  \n  a\n", cuts=[1, 3, 5])
@example(data=b" " * 200 + b"a\n", cuts=[64, 128])
def test_a_scan_of_lines_may_stop_and_go_on_anywhere(data, cuts):
    wanted = [offset - 1 for offset in oracle.starts(b"\n" + data)]
    for variant in VARIANTS:
        assert scan(variant, data, sorted(min(cut, len(data)) for cut in cuts))[0] == wanted


# ---- JSON --------------------------------------------------------------------------------------------------------


def expected(record, measure, path):
    """What orjson and a few lines of Python say: (status, number)."""
    value = orjson.loads(record)
    return (TYPE, None) if value is None else expected_of(value, measure, path)


def expected_of(value, measure, path):
    """The same of a value; None in a path stands for `[*]`."""
    if value is None:
        return MISSING, None
    if path and not isinstance(value, list if path[0] is None else dict):
        return TYPE, None
    if path and path[0] is None:
        found = [expected_of(item, measure, path[1:]) for item in value]
        worst = max((PARTIAL if status == MISSING else status for status, _ in found), default=OK)
        return worst, total([number for status, number in found if status == OK]) if worst <= PARTIAL else None
    if path:
        return expected_of(value.get(path[0]), measure, path[1:])
    if measure == NUMBER:
        return (OK, value) if type(value) in (int, float) else (TYPE, None)
    if not isinstance(value, list if measure == ITEMS else str):
        return TYPE, None
    return OK, len(value.encode() if measure == BYTES else value)


def total(numbers):
    """The exact sum of integers, if 64 bits hold it; else a float."""
    floats = [number for number in numbers if type(number) is float]
    whole = sum(number for number in numbers if type(number) is int)
    return whole if not floats and -(2**63) <= whole < 2**64 else reduce(operator.add, floats, 0.0) + float(whole)


def measured(variant, record, measure, path):
    keys = tuple(None if key is None else key.encode() for key in path)
    status, at, kind, bits = _native.measure_record(variant, ((measure, keys),), record)
    assert 0 <= at <= len(record)
    return status, struct.unpack("<" + "Qqd"[kind], struct.pack("<Q", bits))[0] if status <= PARTIAL else None


def is_json(record):
    try:
        orjson.loads(record)
    except orjson.JSONDecodeError:
        return False
    return True


def test_texts_of_every_shape_good_and_damaged_are_what_orjson_says():
    make, seen = Text(0), dict.fromkeys([OK, PARTIAL, MISSING, TYPE, INVALID], 0)
    for _ in range(CASES):
        record = (make.space() + (make.object() if make.chance(0.95) else make.value()) + make.space()).encode()
        if make.chance(0.4):
            record = make.damaged(record).replace(b"\n", b" ")
        good, measure, path = is_json(record), make.choice(MEASURES), make.choice(PATHS + SUMS)
        wanted = expected(record, measure, path) if good else (INVALID, None)
        seen[wanted[0]] += 1
        for variant in VARIANTS:
            assert (_native.json_error(variant, record) is None) == good, record
            found = measured(variant, record, measure, path)
            if good:
                assert (found, type(found[1])) == (wanted, type(wanted[1])), (variant, record, measure, path)
    assert min(seen[each] for each in (OK, MISSING, TYPE, INVALID)) > CASES / 200


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


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_rule_of_json(variant):
    records = [text.encode() for text in TEXTS] + RAW
    records = [each % text for text in records for each in (b"%b", b"[%b]", b'{"a":%b}', b'{"b":[%b,1],"a":1}')]
    records += [b" " * 70 + record for record in records[::4]]
    for depth in (1023, 1024, 1025, 100_000):
        records += [b"[" * depth + b"1" + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth]
    for record in records:
        good = is_json(record)
        assert (_native.json_error(variant, record) is None) == good, record[:300]
        for measure in MEASURES if good else ():
            assert measured(variant, record, measure, ("a",)) == expected(record, measure, ("a",)), record[:300]


LEAVES = st.one_of(
    st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False, allow_infinity=False), st.text(), st.integers(0, 9)
)
ITEMS_OF = {NUMBER: LEAVES.filter(lambda x: not isinstance(x, str)), CHARS: st.text(), BYTES: st.text()}
ITEMS_OF[ITEMS] = st.lists(st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3), max_leaves=4), max_size=4)


@given(st.data(), st.sampled_from(MEASURES), st.sampled_from(["a[*]", "a[*].b", "a.b[*]", "b.a[*].c.b"]))
def test_a_sum_is_that_of_plain_python(data, measure, text):
    """Of lists whose items are as wanted; in some, a few are null, lack a key or have another type."""
    before, _, behind = text.partition("[*]")
    inside = [key for key in behind.split(".") if key]
    wrong = data.draw(
        st.sampled_from([st.nothing(), st.none(), st.one_of(st.none(), LEAVES, st.just({}), st.just([]))])
    )

    def item():
        value = data.draw(st.one_of(ITEMS_OF[measure], wrong))
        for key in reversed(inside):
            others = {each: data.draw(LEAVES) for each in data.draw(st.sets(st.sampled_from(["b,", "c", "]}"])))}
            value = data.draw(st.one_of(st.just({**others, key: value}), st.just({key: value, **others}), wrong))
        return value

    value = [item() for _ in range(data.draw(st.integers(0, 5)))]
    for key in reversed(before.split(".")):
        value = {"x": [1, {"a": [2]}], key: value, "y": "[*]"}
    record, path = json.dumps(value, ensure_ascii=data.draw(st.booleans())).encode(), ()
    for key in Expression.parse("n", text).path:
        path += (key and key.decode(),)
    wanted = expected(record, measure, path)
    for variant in VARIANTS:
        found = measured(variant, record, measure, path)
        assert (found, type(found[1])) == (wanted, type(wanted[1])), (variant, record)


SUMMED = [  # a wrong type before a missing value; the last of equal keys; integers exactly, as far as 64 bits go
    *('{"a":[]}', '{"a":[{"b":1},{}]}', '{"a":[null,{"b":"x"}]}', '{"a":[{"b":"x"},null]}', '{"a":null}'),
    '{"a":[{"b":3,"b":null},null,{"b":1}]}',
    *('{"a":{"b":1}}', '{"a":[{"b":"x","b":2}],"a":[{"b":[],"\\u0062":3},{"b":4}]}', '{"a":[{"b":1},{"b":0.5}]}'),
    *('{"a":[{"b":9007199254740993},{"b":-1}]}', '{"a":[{"b":18446744073709551615},{"b":1},{"b":-1}]}'),
    *('{"a":[{"b":18446744073709551615},{"b":1}]}', '{"a":[{"b":-9223372036854775808},{"b":-1}]}'),
    *('{"a":[1 2]}', '{"a":[1,]}', '{"a":[,1]}', '{"a":[{"b":1,}]}', '{"a":[{"b"}]}', '{"a":[1}', '{"a":[tru]}'),
]


def test_what_counts_in_a_sum():
    for text, path in product(SUMMED, (("a", None), ("a", None, "b"))):
        record = text.encode()
        wanted = expected(record, NUMBER, path) if is_json(record) else (INVALID, None)
        found = measured(None, record, NUMBER, path)
        assert (found, type(found[1])) == (wanted, type(wanted[1])), (text, path)


@pytest.mark.parametrize("variant", VARIANTS)
def test_keys_escapes_and_quotes_on_both_sides_of_every_block_edge(variant):
    fields = ['"len":7', '"l\\u0065n":7', '"x\\\\":":\\"","len" : 7', '"len":1,"len":7', '"x":{"len":1},"len":7']
    for padding in range(200):
        for field in fields:
            record = ('{"pad":"' + "p" * padding + '",' + field + "}").encode()
            assert measured(variant, record, NUMBER, ("len",)) == (OK, 7), record
        quotes = ('{"a":"' + "\\" * 2 * padding + '\\"","len":[1,[2,3],"a,b"]}').encode()
        assert measured(variant, quotes, ITEMS, ("len",)) == (OK, 3)
        assert measured(variant, quotes, CHARS, ("a",)) == (OK, padding + 1)
        assert measured(variant, quotes, ITEMS, ("len", None)) == (TYPE, None)
        chat = ('{"pad":"' + "p" * padding + '","len":[{"a":"b\\""},{"a":"c"}]}').encode()
        assert measured(variant, chat, CHARS, ("len", None, "a")) == (OK, 3)


NEIGHBOURS = [
    *(b'{"a":1}"', b'{"a":1,"\\u0061":2}', b'{"a":"x","\\u0061":"yy","b":"\\n"}', b'{"a":[1],"\\u0061":[2,3]}'),
    *(b'{"a":1}}', b'{"a":1}{"a":2}', b'"a":1', b'[{"a":1}]', b'{"a":', b'"x"', b'{"a":"x', b'{"a":[1,', b'{"a":1}\\'),
]


def test_records_of_a_text_are_measured_as_each_alone():
    """Also beside records that are damaged, end inside a string, or lie among blank lines."""
    make = Text(1)
    for _ in range(CASES // 40):
        measure, path, records = make.choice(MEASURES), make.choice([("a",), make.choice(PATHS)]), []
        for _ in range(make.choice([1, 5, 300])):
            record = make.choice(NEIGHBOURS) if make.chance(0.2) else make.object().encode()
            if make.chance(0.1):
                record = make.damaged(record)
            records.append(record.replace(b"\n", b" ").strip() or b"{}")
        text, starts = b"", []
        for record in records:
            text += make.choice([b"", b"", b"", b"\n", b" \r\n"])
            starts.append(len(text))
            text += record + make.choice([b"\n", b"\n", b"\r\n"])
        text = text[: -make.choice([1, 2])] if make.chance(0.3) and len(records[-1]) > 2 else text
        ends = [*starts[1:], len(text)]
        alone = [measured(None, text[a:b].strip(), measure, path) for a, b in zip(starts, ends, strict=True)]
        wanted = [(start, number) for start, (status, number) in zip(starts, alone, strict=True) if status == OK]
        fields, options = ((measure, tuple(key.encode() for key in path)),), {"validate": False, "skip_bad": True}
        core = _native.Measuring(fields=fields, missing=_native.MISSING_SKIP, fill=(0, 0), **options)
        room = [np.zeros(len(text) // 2 + 2, np.uint64) for _ in range(2)]
        _, kept, ((kind, *_),), *_ = core.lines(text, 0, 0, len(text), room[0], (room[1],))
        numbers = room[1][:kept].view("<" + ("u8", "i8", "f8")[kind]).tolist()
        found = list(zip(room[0][:kept].tolist(), numbers, strict=True))
        assert found == [(start, float(number) if kind == 2 else number) for start, number in wanted], text


DEEP = ".".join("a" * 16)
EXPRESSIONS = {
    "a.b": (NUMBER, (b"a", b"b")),
    r"chars(a\.b)": (CHARS, (b"a.b",)),
    "bytes()": (_native.MEASURE_RECORD, ()),
    "a[*].b": (NUMBER, (b"a", None, b"b")),
    r"items(a\.b[*])": (ITEMS, (b"a.b", None)),
    r"a\[*].b[*]c": (NUMBER, (b"a[*]", b"b[*]c")),
    f"{DEEP}[*]": (NUMBER, (*[b"a"] * 16, None)),
}


def test_expressions_of_columns():
    for text, wanted in EXPRESSIONS.items():
        assert Expression.parse("n", text) == (text, *wanted)
    wrong = ("", "a..b", "words(a)", "chars()", f"{DEEP}.a", "\ud800", "[*]", "[*].a", "a[*][*]", "a[*].b[*]")
    for text in (*wrong, f"{DEEP}[*].a"):
        with pytest.raises(ValueError, match=r"^column 'n': expected a path.* found .*'") as refused:
            Expression.parse("n", text)
        assert repr(text) in str(refused.value)


# ---- decimal numbers, bit by bit ---------------------------------------------------------------------------------


def read(text):
    """Return the number that the core reads; None if it refuses the text."""
    status, number = measured(None, b'{"a":' + text.encode() + b"}", NUMBER, ("a",))
    return number if status == OK else None


def check(text):
    wanted, found = float(text), read(text)
    if math.isinf(wanted):
        assert found is None, text
    else:
        assert struct.pack("<d", found) == struct.pack("<d", wanted), text


@given(st.integers(0, 10**40), st.integers(-400, 400), st.integers(0, 30), st.booleans())
def test_floats_of_any_digits_point_and_exponent(digits, exponent, zeros, negative):
    text = str(digits)
    for cut in {1, len(text) // 2, len(text)} - {0}:
        fraction = f"{text[cut:]}{'0' * zeros}"
        check(f"{'-' if negative else ''}{text[:cut]}{'.' if fraction else ''}{fraction}e{exponent}")
    check(f"0.{'0' * zeros}{text}E{exponent:+04}")


def test_floats_halfway_between_two_doubles():
    chosen = random.Random(0)
    powers = [2.0**power for power in (-1074, -1073, -1023, -1022, -1021, -52, -1, 0, 1, 52, 53, 54, 1022, 1023)]
    numbers = [*powers, 2.2250738585072009e-308, *(abs(chosen.gauss(0, 1)) for _ in range(50))]
    for number, digits in product(numbers, (17, 18, 19, 20, 30, 400, 790)):
        exact = Fraction(number) + Fraction(math.ulp(number)) / 2
        exponent = math.floor(math.log10(number)) - digits + 1
        for step in (-1, 0, 1):
            check(f"{int(exact / Fraction(10) ** exponent) + step}e{exponent}")


def test_floats_at_the_edges_of_each_way():
    """Of the exact product, of 19 digits, of the table of powers, and of what strtod is given."""
    mantissas = (2**53 - 1, 2**53, 2**53 + 1, 10**18, 10**19 - 1, 10**19, 10**19 + 1, 2**64 - 1, 2**64, 1)
    exponents = (-345, -343, -342, -341, -28, -27, -26, -23, -22, -21, 0, 21, 22, 23, 55, 56, 289, 308, 309)
    for mantissa, exponent in product(mantissas, exponents):
        check(f"{mantissa}e{exponent}")
    for size, last in product((18, 19, 20, 21, 799, 800, 801, 2000), "0156"):
        check(f"0.{'9' * size}{last}")
        check(f"9007199254740993.{'0' * size}{last}")
    for text in ("-0.0", "0e99999999999999999999", "1e-99999999999999999999", "1e99999999999999999999"):
        check(text)


def test_integers_are_exact_as_far_as_64_bits_go():
    for number in (0, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 10**18, 10**19, 9_999_999, 99_999_999, 999_999_999):
        assert (read(str(number)), type(read(str(number)))) == (number, int)
    for number in (2**64, -(2**63) - 1, 10**20, 10**30, -(10**19)):
        assert (read(str(number)), type(read(str(number)))) == (float(number), float)


def test_the_table_has_the_powers_of_ten():
    """As 128 bits, rounded up where 5^-q has 64 bits or fewer, so that a quotient by it can be exact, and else down."""
    text = (ROOT / "csrc" / "powers.h").read_text()
    table = [int(high + low, 16) for high, low in re.findall(r"\{0x(\w{16}), 0x(\w{16})\}", text)]
    for power, found in zip(range(-342, 309), table, strict=True):
        exact = Fraction(10) ** power
        bits = exact.numerator.bit_length() - exact.denominator.bit_length()
        scaled = exact * Fraction(2) ** (128 - bits)
        assert found == math.floor(scaled / 2 if scaled >= 2**128 else scaled) + (-27 <= power < 0)
