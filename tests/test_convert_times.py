"""Converting dates, times, durations and decimals: no digit is lost, wherever they stand in a table."""

from decimal import Decimal

import pyarrow as pa
import pytest

import mmapds
from mmapds.convert import convert
from tests.support.conversions import samples, save

WHOLE = {  # values that take all digits of a unit, and a null
    **{f"timestamp[{unit}]": (pa.timestamp(unit), [2**63 - 1, None, -5]) for unit in ("s", "ms", "us", "ns")},
    **{f"timestamp[{unit}, tz]": (pa.timestamp(unit, "Europe/Rome"), [2**40, None, 1]) for unit in ("s", "us", "ns")},
    **{f"duration[{unit}]": (pa.duration(unit), [2**63 - 1, None, -5]) for unit in ("s", "ms", "us", "ns")},
    "time32[s]": (pa.time32("s"), [86_399, None, 1]),
    "time32[ms]": (pa.time32("ms"), [86_399_999, None, 1]),
    "time64[us]": (pa.time64("us"), [86_399_999_999, None, 1]),
    "time64[ns]": (pa.time64("ns"), [86_399_999_999_999, None, 1]),
    "date32": (pa.date32(), [2**31 - 1, None, -5]),
    "date64": (pa.date64(), [86_400_000, None, -86_400_000]),
}
PRICES = [Decimal("1.10"), None, Decimal("-123.45")]
TYPES = {name: (pa.array(values, f"int{kind.bit_width}").view(kind), values) for name, (kind, values) in WHOLE.items()}
TYPES |= {
    f"decimal{bits}": (pa.array(PRICES, getattr(pa, f"decimal{bits}")(5, 2)), ["1.10", None, "-123.45"])
    for bits in (32, 64, 128, 256)
}
NAMES = pa.array(["a", "b", "c"])
PLACES = {
    "at the top": (lambda a: a, lambda v: v),
    "in lists": (lambda a: pa.ListArray.from_arrays([0, 0, 1, 3], a), lambda v: [[], v[:1], v[1:]]),
    "in lists of one length": (lambda a: pa.FixedSizeListArray.from_arrays(a, 3), lambda v: [v]),
    "in lists of lists": (
        lambda a: pa.ListArray.from_arrays([0, 1, 3], pa.ListArray.from_arrays([0, 2, 2, 3], a)),
        lambda v: [[v[:2]], [[], v[2:]]],
    ),
    "in lists of structs": (
        lambda a: pa.ListArray.from_arrays([0, 2, 3], pa.StructArray.from_arrays([a, NAMES], ["at", "name"])),
        lambda v: [[{"at": v[0], "name": "a"}, {"at": v[1], "name": "b"}], [{"at": v[2], "name": "c"}]],
    ),
    "in maps": (
        lambda a: pa.MapArray.from_arrays([0, 2, 3], NAMES, a),
        lambda v: [[["a", v[0]], ["b", v[1]]], [["c", v[2]]]],
    ),
    "in dictionaries": (
        lambda a: pa.DictionaryArray.from_arrays(pa.array([2, 2, None, 0]), a),
        lambda v: [v[2], v[2], None, v[0]],
    ),
    "in slices": (lambda a: pa.ListArray.from_arrays([0, 0, 1, 3], a).slice(2), lambda v: [v[1:]]),
}


@pytest.mark.parametrize("place", PLACES)
def test_json_has_the_integers_of_times_and_the_text_of_decimals(tmp_path, place):
    made, expected = PLACES[place]
    table = {name: made(array) for name, (array, _) in TYPES.items()}
    path = save(pa.table(table), tmp_path / "a.arrow", "arrow")
    found = samples(convert(path, types=dict.fromkeys(TYPES, "json")).path)
    for name, (_, values) in TYPES.items():
        assert [sample[name] for sample in found] == expected(values), name


def test_parts_of_structs_are_as_columns_are(tmp_path):
    parts = pa.StructArray.from_arrays([array for array, _ in TYPES.values()], [*TYPES])
    path = save(pa.table({"x": parts}), tmp_path / "a.arrow", "arrow")
    expected = [{f"x.{name}": values[row] for name, (_, values) in TYPES.items()} for row in range(3)]
    assert samples(convert(path, types=dict.fromkeys(expected[0], "json")).path) == expected
    assert samples(convert(path, missing="skip").path) == [expected[0], expected[2]]


def test_lists_of_times_become_json_in_parquet_too(tmp_path):
    clocks = pa.array([[1_234_567_891], [], None], pa.list_(pa.int64())).view(pa.list_(pa.time64("ns")))
    prices = pa.array([[Decimal("1.10"), None], None, []], pa.list_(pa.decimal128(5, 2)))
    path = save(pa.table({"clocks": clocks, "prices": prices}), tmp_path / "a.parquet")
    assert samples(convert(path).path) == [
        {"clocks": [1_234_567_891], "prices": ["1.10", None]},
        {"clocks": [], "prices": None},
        {"clocks": None, "prices": []},
    ]


def test_intervals_are_months_days_and_nanoseconds(tmp_path):
    spans = pa.array([(1, 2, 3), None, (-1, 0, 2**62)], pa.month_day_nano_interval())
    table = pa.table({"x": spans, "list": pa.ListArray.from_arrays([0, 1, 1, 3], spans)})
    path = save(table, tmp_path / "a.arrow", "arrow")
    assert samples(convert(path).path) == [
        {"x": [1, 2, 3], "list": [[1, 2, 3]]},
        {"x": None, "list": []},
        {"x": [-1, 0, 2**62], "list": [None, [-1, 0, 2**62]]},
    ]


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize(
    ("first", "other"),
    [
        (pa.timestamp("us"), pa.timestamp("ns", "UTC")),
        (pa.duration("s"), pa.duration("ms")),
        (pa.time64("us"), pa.time64("ns")),
        (pa.date32(), pa.date64()),
    ],
    ids=str,
)
def test_files_whose_times_have_different_units_are_not_mixed(tmp_path, first, other, is_nested):
    for name, kind in (("a", first), ("b", other), ("c", first)):
        array = pa.array([0], f"int{kind.bit_width}").view(kind)
        column = pa.ListArray.from_arrays([0, 1], array) if is_nested else array
        save(pa.table({"at": column}), tmp_path / f"{name}.arrow", "arrow")
    message = r"b\.arrow: field 'at': expected \w+\[\w+\], as in the files before, found \w+\[\w+\]$"
    with pytest.raises(mmapds.FormatError, match=message):
        convert([tmp_path / "a.arrow", tmp_path / "b.arrow"], tmp_path / "o.mma")
    done = convert([tmp_path / "a.arrow", tmp_path / "c.arrow"], tmp_path / "o.mma")
    assert [sample["at"] for sample in samples(done.path)] == ([[0], [0]] if is_nested else [0, 0])
