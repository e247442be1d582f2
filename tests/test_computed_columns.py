"""Columns that `mmapds.build` computes by functions: all of them or the old index, and again by another function."""

import gzip
import os
import signal
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

import mmapds
from mmapds.compression.reader import BlockReader
from mmapds.index.marks import mark_of
from mmapds.storage.index_file import Index
from tests.support.alive import Counted
from tests.support.commands import SECONDS, command, run
from tests.support.index_file import rewrite
from tests.support.messages import check
from tests.test_locks import names, started


def words(sample):
    return len(sample["text"].split())


def chars(sample):
    return len(sample["text"])


def fails(sample):
    return sample["nope"]


def fails_as_others_do(sample):
    raise mmapds.ColumnError(f"expected a text, found {sample}")


@pytest.fixture
def path(write):
    return write([{"text": "word " * (number % 20)} for number in range(100)])


def lengths(path):
    return mmapds.open(path).lengths.tolist()


def test_samples_are_decoded_one_by_one(path):
    """Each may be an image or a recording, whatever its bytes in the file."""
    mmapds.build(path)
    Counted.begin()
    mmapds.add_column(path, "length", words, decode=Counted, workers=1)
    assert Counted.most <= 3
    assert lengths(path) == [number % 20 for number in range(100)]


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_few_bytes_of_large_records_are_in_memory(tmp_path, suffix):
    path = tmp_path / f"train.{suffix}"
    with gzip.open(path, "wb") if suffix.endswith("gz") else path.open("wb") as file:
        for size in [10] * 2000 + [1 << 20] * 32:
            file.write(b"x" * size + b"\n")
    mmapds.build(path)
    tracemalloc.start()
    try:
        mmapds.add_column(path, "length", len, decode="bytes", workers=1)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert lengths(path) == [10] * 2000 + [1 << 20] * 32


def test_records_of_a_block_are_read_together(tmp_path, monkeypatch):
    """As each look for a block takes as long as many records."""
    path, asked, blocks = tmp_path / "train.txt.gz", [], BlockReader.blocks
    path.write_bytes(gzip.compress(b"".join(b"%d\n" % number for number in range(3000))))
    mmapds.build(path)
    monkeypatch.setattr(BlockReader, "blocks", lambda self, wanted: asked.append(wanted) or blocks(self, wanted))
    mmapds.add_column(path, "length", int, workers=1)
    assert len(asked) <= 3000 / 100
    assert lengths(path) == list(range(3000))


# ---- all columns, or the old index ---------------------------------------------------------------------------------


def grow(path):
    with open(path, "a") as file:
        file.write('{"text": "more"}\n')


@pytest.mark.parametrize("how", [{"force": True}, {"columns": {"size": "bytes()"}}, {"hash": True, "force": True}, {}])
@pytest.mark.parametrize("wrong", [fails, fails_as_others_do])
def test_a_function_that_raises_leaves_the_old_index(path, tmp_path, how, wrong):
    mmapds.build(path, length=words)
    if not how:
        grow(path)
    before = Path(f"{path}.mmx").read_bytes()
    with pytest.raises((KeyError, mmapds.ColumnError)) as raised:
        mmapds.build(path, length=wrong, **how)
    assert "computing a column for" in raised.value.__notes__[0]
    assert len(raised.value.__notes__) == 1, "the function ran once"
    assert Path(f"{path}.mmx").read_bytes() == before
    assert names(tmp_path) == ["train.jsonl", "train.jsonl.mmx"]
    mmapds.build(path, length=words, **how)
    assert lengths(path) == [words(sample) for sample in mmapds.open(path)]


def test_columns_come_all_or_none(path, tmp_path):
    with pytest.raises(KeyError):
        mmapds.build(path, length=words, columns={"wrong": fails})
    assert names(tmp_path) == ["train.jsonl"]
    mmapds.build(path)
    before = Path(f"{path}.mmx").read_bytes()
    with pytest.raises(KeyError):
        mmapds.build(path, length=words, columns={"wrong": fails})
    assert Path(f"{path}.mmx").read_bytes() == before


def test_of_several_sources_those_before_a_failure_are_built(write, path, tmp_path):
    other = write([{"nope": 1}], "wrong.jsonl")
    with pytest.raises(KeyError):
        mmapds.build([path, other], length=words)
    assert lengths(path) == [words(sample) for sample in mmapds.open(path)]
    assert names(tmp_path) == ["train.jsonl", "train.jsonl.mmx", "wrong.jsonl"]


def test_an_executor_leaves_the_old_index_too(path, tmp_path):
    out = tmp_path / "all.mmx"
    with ThreadPoolExecutor(2) as pool:
        mmapds.build(path, out=out, length=words, executor=pool)
        before = out.read_bytes()
        with pytest.raises(KeyError):
            mmapds.build(path, out=out, length=fails, executor=pool, force=True)
        assert out.read_bytes() == before
        mmapds.build(path, out=out, length=words, executor=pool, force=True)
    assert out.read_bytes() == before
    assert names(tmp_path) == ["all.mmx", "train.jsonl"]


SLOW = """
import signal, sys
import mmapds

def slow(sample):
    print("began", flush=True)
    signal.pause()

mmapds.build(sys.argv[1], length=slow, force=True)
"""


def test_a_process_that_is_killed_leaves_the_old_index(path, tmp_path):
    mmapds.build(path, length=words)
    before = Path(f"{path}.mmx").read_bytes()
    with started("-c", SLOW, path) as process:
        assert process.stdout.readline() == "began\n", process.communicate()
        assert Path(f"{path}.mmx").read_bytes() == before
        process.send_signal(signal.SIGKILL)
        assert process.wait(SECONDS) == -signal.SIGKILL
    assert Path(f"{path}.mmx").read_bytes() == before
    mmapds.build(path, length=words)
    assert Path(f"{path}.mmx").read_bytes() == before
    assert names(tmp_path) == ["train.jsonl", "train.jsonl.mmx"]


SPAWNS = """
import multiprocessing, operator, sys
import mmapds
if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    mmapds.build(sys.argv[1], length=operator.itemgetter("n"), workers=2)
"""


def test_workers_that_are_not_forked_read_the_index_before_it_is_in_its_place(write):
    path = write([{"n": number % 7} for number in range(9000)])
    done = run("-c", SPAWNS, path)
    assert done.returncode == 0, done.stderr
    assert lengths(path) == [number % 7 for number in range(9000)]


# ---- another function computes again -------------------------------------------------------------------------------


def test_another_function_computes_its_column_again_and_no_other(path):
    calls = Path(path).with_name("calls")

    def counted(function):
        return partial(noted, function, str(calls))

    def build(**columns):
        calls.write_text("")
        mmapds.build(path, columns={name: counted(function) for name, function in columns.items()}, workers=1)
        return set(calls.read_text().split())

    assert build(a=words, b=chars) == {"words", "chars"}
    assert build(a=words, b=chars) == set()
    assert build(a=chars, b=chars) == {"chars"}
    ds = mmapds.open(path)
    assert ds.column("a").tolist() == ds.column("b").tolist() == [chars(sample) for sample in ds]
    assert build(a=words, b=chars) == {"words"}
    assert build(a=words, b=chars) == set()
    assert mmapds.open(path).column("a").tolist() == [words(sample) for sample in ds]


def noted(function, calls, sample):
    with open(calls, "a") as file:
        file.write(f"{function.__name__}\n")
    return function(sample)


MODULE = """
import dataclasses, enum, functools, operator, re
from typing import NamedTuple
import numpy as np
LIMIT = 5
calls = 0
WORDS = re.compile("a")
NUMBER, RANGE = np.float64(1), range(10)

class Pair(NamedTuple):
    n: int

class Kind(enum.IntEnum):
    FIRST = 1

class Size(enum.Enum):
    SMALL = (11, 12)
    def half(self):
        return self.value[0] // 2

@dataclasses.dataclass(frozen=True, slots=True)
class Slots:
    n: int

class Counter:
    STEP = 8
    STEPS, WANTED = (13, len, 1.5), frozenset({14})
    def __init__(self):
        self.kept = []
    def __call__(self, sample):
        return self.count()
    def count(self):
        return 21
    @staticmethod
    def still():
        return 22
    @property
    def size(self):
        return 23
    @classmethod
    def made(cls, sample):
        return cls.STEP
    class Inner:
        KIND = 25

class Caller:
    def __init__(self, number):
        self.number = number
    def __call__(self, sample):
        return self.number

CALLER, MADE = Caller(26), Counter.made

PAIR, SLOTS, FIRST, SMALL = Pair(4), Slots(6), Kind.FIRST, Size.SMALL

class Tokenizer:
    def __init__(self, name):
        self.name_or_path = name
    def encode(self, text):
        return text.split()

class Scaled:
    def __init__(self, factor):
        self.factor = factor
    def __call__(self, sample):
        return self.factor
    def method(self, sample):
        return 2

class Hidden:
    __slots__ = ("__factor", "empty")
    def __init__(self, factor):
        self.__factor = factor
    def __call__(self, sample):
        return self.__factor

class Recurring:
    def __init__(self):
        self.step = self.run
    def __call__(self, sample):
        return self.step()
    def run(self):
        return 24

tokenizer = Tokenizer("first")

def helper(text):
    return len(text)

def scaled(factor, sample):
    return factor

def taking(slots, sample):
    return slots.n

def closing(factor):
    def inner(sample):
        return factor
    return inner

def decorated(function):
    @functools.wraps(function)
    def wrapper(sample):
        return function(sample)
    return wrapper

@decorated
def wrapped(sample):
    return 3

@functools.lru_cache
def cached(text):
    return 4

def function(sample):
    '''Return a number.'''
    BODY
"""
FUNCTIONS = {
    "a constant": ("return 1", "function", "return 1", "return 7"),
    "what it calls": ("return len(sample)", "function", "len(sample)", "bool(sample)"),
    "its name": ("return 1", "function", "function(sample):\n    '''", "another(sample):\n    '''"),
    "a default": ("return 1", "function", "function(sample):\n    '''", "function(sample, k=2):\n    '''"),
    "a function in it": ("return sum(1 for _ in sample)", "function", "sum(1", "sum(7"),
    "a global that it reads": ("return LIMIT", "function", "LIMIT = 5", "LIMIT = 6"),
    "what it calls in its module": ("return helper('')", "function", "len(text)", "len(text) + 1"),
    "the name of a tokenizer": ("return len(tokenizer.encode(''))", "function", '"first"', '"second"'),
    "what a partial function has": ("", "functools.partial(scaled, 1)", "", "2"),
    "what it closes over": ("", "closing(1)", "", "2"),
    "what an object has": ("", "Scaled(1)", "", "2"),
    "the object of a method": ("", "Scaled(1).method", "", "2"),
    "the code of a method": ("", "Scaled(1).method", "return 2", "return 3"),
    "what a decorator calls": ("", "wrapped", "return 3", "return 4"),
    "the field that it takes": ("", "operator.itemgetter(1)", "", "2"),
    "the method that it calls": ("", "operator.methodcaller('m', k=1)", "", "2"),
    "a pattern": ("return len(WORDS.findall('a'))", "function", '"a")', '"b")'),
    "the flags of a pattern": ("return len(WORDS.findall('a'))", "function", '"a")', '"a", re.I)'),
    "a number of NumPy": ("return NUMBER", "function", "np.float64(1)", "np.float64(2)"),
    "the type of a number of NumPy": ("return NUMBER", "function", "np.float64(1)", "np.float32(1)"),
    "a range": ("return len(RANGE)", "function", "range(10)", "range(11)"),
    "a named tuple": ("return PAIR.n", "function", "Pair(4)", "Pair(5)"),
    "a member of an enum": ("return int(FIRST)", "function", "FIRST = 1", "FIRST = 2"),
    "a data class with slots": ("return SLOTS.n", "function", "Slots(6)", "Slots(7)"),
    "a constant of a class": ("return Counter.STEP", "function", "STEP = 8", "STEP = 9"),
    "a method that a method calls": ("", "Counter()", "return 21", "return 31"),
    "a method of an object that it makes": ("return Counter().count()", "function", "return 21", "return 31"),
    "a tuple of a class": ("return Counter.STEPS[0]", "function", "(13,", "(15,"),
    "a frozen set of a class": ("return len(Counter.WANTED)", "function", "{14}", "{16}"),
    "the tuple of a member of an enum": ("return Size.SMALL.value[0]", "function", "(11, 12)", "(11, 13)"),
    "a method of a member of an enum": ("return SMALL.half()", "function", "// 2", "// 3"),
    "what a tuple of an object has": ("", "Scaled((1, len))", "", "2"),
    "what a frozen set of an object has": ("", "Scaled(frozenset({1}))", "", "2"),
    "a slot whose name is private": ("", "Hidden(1)", "", "2"),
    "the object that a partial function has": ("", "functools.partial(taking, Slots(1))", "", "2"),
    "an object that a partial function has by name": ("", "functools.partial(taking, slots=Slots(1))", "", "2"),
    "a function that an object has": ("return helper('')", "Scaled(function)", "len(text)", "len(text) + 1"),
    "a partial function that an object has": ("", "Scaled(functools.partial(scaled, 1))", "", "2"),
    "the object of a method that an object has": ("", "Scaled(Scaled(1).method)", "", "2"),
    "its own method that an object has": ("", "Recurring()", "return 24", "return 34"),
    "a static method": ("return Counter.still()", "function", "return 22", "return 32"),
    "the class that a method is bound to": ("", "Counter.made", "STEP = 8", "STEP = 9"),
    "the class of a method that it calls": ("return MADE(sample)", "function", "STEP = 8", "STEP = 9"),
    "a class in a class": ("return Counter.Inner.KIND", "function", "KIND = 25", "KIND = 35"),
    "an object that it calls": ("return CALLER(sample)", "function", "Caller(26)", "Caller(36)"),
    "a property": ("return Counter().size", "function", "return 23", "return 33"),
    "what a cache calls": ("return cached('')", "function", "return 4", "return 5"),
}
ALIKE = {
    "a docstring": ("return 1", "Return a number.", "Return another number."),
    "a line before it": ("return 1", "def function(", "# numbers\n\ndef function("),
    "a global that it does not read": ("return 1", "LIMIT = 5", "LIMIT = 6"),
    "a function that it does not call": ("return 1", "len(text)", "len(text) + 1"),
    "a class that it does not use": ("return 1", "return 21", "return 31"),
    "a counter": ("global calls; calls += 1; return 1", "calls = 0", "calls = 9"),
}


def mark(body, function, old="", new=""):
    """The mark of what an expression makes in a module with a function of this body, with `old` changed."""
    module = MODULE.replace("BODY", body or "return 1")
    assert old in module
    if new and not old:
        function = function.replace("1", new)
    names = {"__name__": "job"}
    exec(compile(module.replace(old, new) if old else module, "job.py", "exec"), names)
    return mark_of(eval("another" if "another(" in new else function, names))


@pytest.mark.parametrize("change", FUNCTIONS)
def test_a_function_is_known_by(change):
    body, function, old, new = FUNCTIONS[change]
    first = mark(body, function)
    assert mark(body, function) == first
    assert mark(body, function, old, new) != first


@pytest.mark.parametrize("change", ALIKE)
def test_a_function_is_not_known_by(change):
    body, old, new = ALIKE[change]
    assert mark(body, "function") == mark(body, "function", old, new)


class Lazy:
    """Loads its model when it is first called, and counts."""

    def __init__(self):
        self.model, self.calls = None, 0

    def __call__(self, sample):
        self.model, self.calls = "loaded", self.calls + 1
        return sample["n"]

    def __repr__(self):
        raise RuntimeError("not loaded yet")


lazy = Lazy()
lazy.inner = Lazy()  # whose text nobody asks for


def by_lazy(sample):
    return lazy(sample)


@pytest.mark.parametrize("compute", [by_lazy, lazy], ids=["calling", "itself"])
def test_what_a_function_keeps_does_not_tell_the_indexes_of_one_build_apart(write, tmp_path, compute):
    lazy.model, lazy.calls = None, 0
    paths = [write([{"n": n}] * 3, f"{n}.jsonl") for n in range(3)]
    indexes = mmapds.build(paths, columns={"m": compute}, workers=1)
    assert lazy.calls == 9
    assert len({Index(str(index)).functions["m"] for index in indexes}) == 1
    assert mmapds.open(paths).column("m").tolist() == [n for n in range(3) for _ in range(3)]
    mmapds.merge(indexes, out=tmp_path / "all.mmx")
    mmapds.build(paths, columns={"m": compute}, workers=1)  # it is another one now
    assert lazy.calls == 18


SETS = """
import enum
from typing import NamedTuple

class Color(enum.Enum):
    RED = "red"
    GREEN = "green"
    BLUE = "blue"

class Named(NamedTuple):
    name: str

def upper(text):
    return text.upper() if upper in STEPS else text

def lower(text):
    return text.lower() if upper in STEPS else text

COLORS = frozenset(Color)
NAMES = frozenset({Named("a"), Named("b"), Named("c")})
STEPS = frozenset({upper, lower})

def function(sample):
    return (sample in COLORS) + (sample in NAMES) + (sample in STEPS)

class Counter:
    COUNTED = frozenset(Color)

    def __call__(self, sample):
        return sample in self.COUNTED
"""


@pytest.mark.parametrize(
    "module", [MODULE.replace("BODY", "return sample in {'a', 'b', 'c'}"), SETS], ids=["code", "sets"]
)
def test_marks_are_the_same_in_every_process(module):
    script = (
        module + "from mmapds.index.marks import mark_of\nprint(mark_of(function), mark_of(len), mark_of(Counter()))"
    )
    outputs = {run("-c", script, env=os.environ | {"PYTHONHASHSEED": str(seed)}).stdout for seed in range(4)}
    assert len(outputs) == 1
    assert outputs.pop().startswith("function:")


def test_a_column_of_add_column_is_known_by_its_function_too(path):
    mmapds.build(path)
    mmapds.add_column(path, "length", words)
    before = Path(f"{path}.mmx").read_bytes()
    mmapds.build(path, length=words)
    assert Path(f"{path}.mmx").read_bytes() == before
    mmapds.build(path, length=chars)
    assert lengths(path) == [chars(sample) for sample in mmapds.open(path)]


def test_numbers_that_add_column_was_given_are_replaced_by_a_function(path):
    mmapds.build(path, columns={"length": words, "size": chars})
    mmapds.add_column(path, "length", [5] * 100)
    assert list(Index(f"{path}.mmx").functions) == ["size"]
    mmapds.build(path, columns={"length": words, "size": chars})
    assert lengths(path) == [words(sample) for sample in mmapds.open(path)]


def test_an_expression_in_the_place_of_a_function_is_refused_and_the_way_it_names_works(path):
    mmapds.build(path, length=words)
    done = command(path, "--length", "chars(text)")
    assert done.returncode == 1
    assert ", pass length=FUNCTION to mmapds.build, or " in done.stderr
    mmapds.build(path, length=chars)
    assert lengths(path) == [chars(sample) for sample in mmapds.open(path)]
    assert command(path, "--length", "bytes(text)", "--force").returncode == 0
    assert Index(f"{path}.mmx").functions == {}


def test_indexes_of_one_function_are_merged_and_those_of_two_are_not(write, tmp_path):
    paths = [write([{"text": "a b"}] * 3, f"{name}.jsonl") for name in "ab"]
    mmapds.build(paths, length=words)
    merged = mmapds.merge(paths, out=tmp_path / "all.mmx").read_bytes()
    mmapds.build(paths, out=tmp_path / "all.mmx", length=words, force=True)
    assert (tmp_path / "all.mmx").read_bytes() == merged
    mmapds.build(paths[1], length=chars)
    with pytest.raises(mmapds.ColumnError, match=r"pass length=FUNCTION to mmapds\.build for both$") as refused:
        mmapds.merge(paths, out=tmp_path / "all.mmx")
    check(str(refused.value))
    mmapds.build(paths, length=chars)
    mmapds.merge(paths, out=tmp_path / "all.mmx")
    assert lengths(tmp_path / "all.mmx") == [3] * 6


@pytest.mark.parametrize("functions", [3, ["length"], {"length": 3}])
def test_functions_in_metadata_are_checked(path, functions):
    mmapds.build(path, length=words)
    rewrite(f"{path}.mmx", metadata=lambda found: {**found, "functions": functions})
    with pytest.raises(mmapds.FormatError, match="expected functions by name, found"):
        mmapds.open(path)
