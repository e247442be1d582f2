"""Numbers on their way into a file, more of them than are kept in memory."""

import os

import numpy as np
import pytest

from mmapds import _native
from mmapds.errors import ColumnError
from mmapds.storage.numbers import U32, Spool

CELLS = {"u": _native.NUMBER_U64, "i": _native.NUMBER_I64, "f": _native.NUMBER_F64}
MANY = 2_200_000
"""Numbers of 64 bits that do not stay in memory."""
SMALL, LARGE = np.array([7], "<u8"), np.arange(2**32, 2**32 + MANY, dtype="<u8")
NEGATIVE, FLOATS = np.array([-1, 5], "<i8"), np.array([0.5, 1e300], "<f8")


@pytest.fixture
def spool(tmp_path):
    yield Spool(os.fspath(tmp_path))
    assert not list(tmp_path.iterdir())


def append(spool, *runs):
    for run in runs:
        spool.append(CELLS[run.dtype.kind], memoryview(run))


def column_of(spool):
    return np.frombuffer(b"".join(spool.chunks()), spool.number_type.dtype)


@pytest.mark.parametrize("last", [SMALL, NEGATIVE, FLOATS], ids=["unsigned", "signed", "floats"])
@pytest.mark.parametrize("narrow", [1, 2, 3])
def test_numbers_of_several_widths_come_back_from_the_scratch_file(spool, narrow, last):
    """An odd number of narrow ones moves the wide ones behind them by half a word."""
    runs = [np.resize(SMALL, narrow), LARGE, last, SMALL, LARGE[:9], last]
    append(spool, *runs)
    expected = np.concatenate([run.astype(spool.number_type.dtype) for run in runs])
    assert spool.count == len(expected)
    assert (column_of(spool) == expected).all()


def test_a_forked_child_that_ends_writes_nothing(spool):
    append(spool, LARGE, LARGE[:9])
    child = os.fork()
    if child == 0:
        spool.__del__()
        os._exit(0)
    os.waitpid(child, 0)
    append(spool, LARGE[9:18])
    assert (column_of(spool) == np.concatenate([LARGE, LARGE[:18]])).all()


def test_an_integer_that_is_rounded_is_found_behind_narrow_ones(spool):
    append(spool, SMALL, LARGE, np.array([2**53 + 1], "<u8"), FLOATS)
    with pytest.raises(ColumnError, match=rf"found {2**53 + 1} \(record {1 + MANY} of the index\)"):
        column_of(spool)


def test_numbers_that_lie_elsewhere_keep_their_place(spool):
    for run in (SMALL, LARGE):
        append(spool, run)
        spool.append_stored(U32, 4, lambda: iter([b"\1\0\0\0" * 3, b"\2\0\0\0"]))
    found = column_of(spool)
    assert found[1:5].tolist() == found[-4:].tolist() == [1, 1, 1, 2]
    assert (found[5:-4] == LARGE).all()


def test_a_scratch_file_that_lost_bytes_is_an_error(spool):
    append(spool, LARGE)
    spool._file.truncate(9)
    with pytest.raises(OSError, match="Input/output error"):
        column_of(spool)
