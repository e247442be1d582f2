"""Where records start: every SIMD variant against the oracle, however the text is cut."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mmapds import _native
from tests.support import oracle

VARIANTS = _native.simd_variants()
TEXT = st.lists(st.sampled_from([b"\n", b"\r\n", b" ", b"\t", b"\r", b"a", b"\x00", b"\xff", b"{}" * 40])).map(b"".join)


def scan(variant, data, cuts=(), base=0):
    """Scan `data` in pieces and return the starts and the number of newlines."""
    found, newlines, pending = [], 0, base
    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        out = np.empty((end - begin) // 2 + 2, np.uint64)
        count, pending, more = _native.scan_lines(variant, data[begin:end], base + begin, pending, out)
        found += out[:count].tolist()
        newlines += more
    return found, newlines


def test_the_portable_variant_is_everywhere_and_the_best_comes_first():
    assert VARIANTS[-1] == "portable"
    assert _native.SIMD in VARIANTS


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_length_and_alignment(variant):
    generator = np.random.default_rng(0)
    for length in range(131):
        choices = generator.choice(list(b"\n\n \r\tab\x00\x0a\xff"), size=length + 32).astype(np.uint8)
        for alignment in range(32):
            data = choices[alignment : alignment + length]
            expected = oracle.starts(b"x\n" + data.tobytes())  # no byte order mark at the front
            found, newlines = scan(variant, memoryview(data))
            assert [2 + start for start in found] == expected[1:], (length, alignment)
            assert newlines == int((data == 10).sum())


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=300)
@given(data=TEXT, cuts=st.lists(st.integers(0, 400), max_size=5))
@example(data=b"\n  \n  a\n", cuts=[1, 3, 5])
@example(data=b" " * 200 + b"a\n", cuts=[64, 128])
def test_a_scan_may_stop_and_go_on_anywhere(variant, data, cuts):
    cuts = sorted(min(cut, len(data)) for cut in cuts)
    expected = [offset - 1 for offset in oracle.starts(b"\n" + data)]
    assert scan(variant, data, cuts)[0] == expected


def test_a_scan_from_the_middle_reports_its_own_begin_when_the_line_goes_on():
    out = np.empty(8, np.uint64)
    count, pending, _ = _native.scan_lines(None, b"tail\nnext\n", 100, 100, out)
    assert (out[:count].tolist(), pending) == ([100, 105], 110)
    count, pending, _ = _native.scan_lines(None, b"   ", 100, 100, out)
    assert (count, pending) == (0, 100)


def test_too_little_room_is_refused():
    with pytest.raises(ValueError, match="expected 7"):
        _native.scan_lines(None, b"a\n" * 5, 0, 0, np.empty(6, np.uint64))


def test_an_unknown_variant_is_refused():
    with pytest.raises(ValueError, match=r"variant = 'mmx', expected a variant that this machine has: .*'portable'"):
        _native.scan_lines("mmx", b"", 0, 0, np.empty(2, np.uint64))
