"""Decimal numbers against Python's float, bit by bit: what is hard to round, long, tiny, huge, or written oddly."""

import math
import random
import struct
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmapds import _native
from tests.support.files import ROOT
from tests.support.powers import header


def read(text):
    """Return the number that the core reads; None if it refuses the text."""
    fields = ((_native.MEASURE_NUMBER, (b"a",)),)
    status, _, kind, bits = _native.measure_record(None, fields, b'{"a":' + text.encode() + b"}")
    return struct.unpack("<" + "Qqd"[kind], struct.pack("<Q", bits))[0] if status == _native.JSON_OK else None


def check(text):
    wanted = float(text)
    found = read(text)
    if math.isinf(wanted):
        assert found is None, text
    else:
        assert struct.pack("<d", found) == struct.pack("<d", wanted), text


def halfway(number, digits):
    """The number between a double and the next one, exactly or to some digits, and its neighbours there."""
    exact = Fraction(number) + Fraction(math.ulp(number)) / 2
    exponent = math.floor(math.log10(number)) - digits + 1
    scaled = int(exact / Fraction(10) ** exponent)
    return [f"{scaled + step}e{exponent}" for step in (-1, 0, 1)]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_what_python_writes(number):
    for text in (repr(number), f"{number:.25e}", f"{number:.16e}", f"{number:.40f}" if abs(number) < 1e300 else "0.5"):
        check(text if set(text) & set(".e") else f"{text}.0")


@given(st.integers(0, 10**40), st.integers(-400, 400), st.integers(0, 30), st.booleans())
def test_digits_point_and_exponent(digits, exponent, zeros, negative):
    text = str(digits)
    for cut in {1, len(text) // 2, len(text)} - {0}:
        fraction = f"{text[cut:]}{'0' * zeros}"
        check(f"{'-' if negative else ''}{text[:cut]}{'.' if fraction else ''}{fraction}e{exponent}")
    check(f"0.{'0' * zeros}{text}E{exponent:+04}")


@pytest.mark.parametrize("digits", [17, 18, 19, 20, 30, 400, 790])
def test_numbers_halfway_between_two_doubles(digits):
    chosen = random.Random(digits)
    powers = [2.0**power for power in (-1074, -1073, -1023, -1022, -1021, -52, -1, 0, 1, 52, 53, 54, 1022, 1023)]
    for number in [*powers, 5e-324, 2.2250738585072009e-308, *(abs(chosen.gauss(0, 1)) for _ in range(100))]:
        for text in halfway(number, digits):
            check(text)


def test_the_edges_of_each_way():
    """Of the exact product, of 19 digits, of the table of powers, and of what strtod is given."""
    for mantissa in (2**53 - 1, 2**53, 2**53 + 1, 10**18, 10**19 - 1, 10**19, 10**19 + 1, 2**64 - 1, 2**64, 1):
        for exponent in (-345, -343, -342, -341, -28, -27, -26, -23, -22, -21, 0, 21, 22, 23, 55, 56, 289, 308, 309):
            check(f"{mantissa}e{exponent}")
    for largest in (7, 8, 9):
        check(f"1.797693134862315{largest}e308")
    check("2.4703282292062327e-324")
    for size in (18, 19, 20, 21, 799, 800, 801, 2000):
        for last in "0156":
            check(f"0.{'9' * size}{last}")
            check(f"{'1' * size}{last}e-{size}")
            check(f"9007199254740993.{'0' * size}{last}")
            check(f"0.{'0' * size}{last}e{size}")
    for text in ("0.0", "-0.0", "0e999999999999999999999", "1e-999999999999999999999", "1e999999999999999999999"):
        check(text)


def test_integers_are_exact_as_far_as_64_bits_go():
    for number in (0, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 10**18, 10**19, 9_999_999, 99_999_999, 999_999_999):
        assert read(str(number)) == number
        assert type(read(str(number))) is int
    for number in (2**64, -(2**63) - 1, 10**20, 10**30, -(10**19)):
        assert read(str(number)) == float(number)
        assert type(read(str(number))) is float


def test_the_table_of_powers_is_the_one_that_the_script_writes():
    assert (ROOT / "csrc" / "powers.h").read_text() == header() + "\n"
