"""Everything that writes a file, for what interrupts it: the file is the old one or the new one then, byte for byte."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import mmapds
from mmapds.convert import convert
from mmapds.storage import current
from mmapds.storage.index_file import Index
from mmapds.storage.places import Files, Places
from tests.support.index_file import verify
from tests.support.torture import is_refused

SCHEMA = {"n": "int64", "s": "str"}
COLUMNS = {"size": "bytes()"}


class Writer(NamedTuple):
    """What writes `target` in a folder, and what wrote the file that was there before, if there was one.

    Functions take the folder, and those of drivers an executor too, and where its tasks leave their parts.
    """

    target: str
    write: Callable[..., Any]
    write_old: Callable[[Path], Any] | None = None
    is_driver: bool = False


def index(folder, **options):
    mmapds.build(folder / "a.jsonl", force=True, **options)


def add_column(folder, workers):
    mmapds.add_column(folder / "a.jsonl", "length", number_of, workers=workers)


def number_of(sample):
    return sample["n"]


def write_arrays(folder, value):
    with mmapds.Writer(folder / "a.mma", SCHEMA, force=True) as writer:
        for number in range(1000):
            writer.write({"n": value, "s": "x" * (number % 50)})


def convert_one(folder):
    convert(folder / "a.jsonl", folder / "a.mma", schema=SCHEMA, force=True)


def save_view(folder, rows):
    mmapds.open(folder / "a.jsonl")[rows].save(folder / "v.mmx")


def build_all(folder, **how):
    sources = sorted(folder.glob("*.jsonl"))
    mmapds.build(sources, out=folder / "all.mmx", force=True, length="n", columns=COLUMNS, **how)


def convert_all(folder, **how):
    convert(sorted(folder.glob("*.jsonl")), folder / "all.mma", force=True, schema=SCHEMA, index=False, **how)


WRITERS = {
    "index": Writer("a.jsonl.mmx", partial(index, length="n"), partial(index, columns=COLUMNS)),
    "column": Writer("a.jsonl.mmx", partial(add_column, workers=1), index),
    "workers": Writer("a.jsonl.mmx", partial(add_column, workers=2), index),
    "arrays": Writer("a.mma", partial(write_arrays, value=1), partial(write_arrays, value=0)),
    "converted": Writer("a.mma", convert_one, partial(write_arrays, value=0)),
    "view": Writer("v.mmx", partial(save_view, rows=slice(None, None, -2)), partial(save_view, rows=slice(100))),
    "parts of an index": Writer("all.mmx", build_all, is_driver=True),
    "parts of arrays": Writer("all.mma", convert_all, is_driver=True),
}


class Folder:
    """A folder in which a writer writes: with sources of so many records, and maybe with an old file."""

    def __init__(self, random, folder, records):
        self.name = random.choice(sorted(WRITERS))
        self.writer, self.path = WRITERS[self.name], folder / "data"
        self.target = self.path / self.writer.target
        self.path.mkdir()
        for name, count in {"a": records, "b": records // random.randint(1, 9), "c": 0, "d": 1}.items():
            lines = (b'{"n": %d, "s": "%s"}\n' % (n % 97, b"x" * (n % 50)) for n in range(count))
            (self.path / f"{name}.jsonl").write_bytes(b"".join(lines))
        mmapds.build(self.path / "a.jsonl")
        if self.writer.write_old and random.random() < 0.7:
            self.writer.write_old(self.path)
        self.before = self.found()
        other = shutil.copytree(self.path, folder / "other")
        self.writer.write(other)
        self.after, self.files = self.found(other), {each.name for each in other.iterdir()}

    def found(self, folder=None):
        """The bytes of the target, None if there is none."""
        path = (folder or self.path) / self.writer.target
        return path.read_bytes() if path.exists() else None

    def check(self, is_done):
        """Hold that the file is the old one or the new one, and that an index beside an array file is one."""
        found = self.found()
        assert found == self.after or (not is_done and found == self.before)
        if self.target.suffix == ".mma" and found is not None and not self.writer.is_driver:
            index = Path(f"{self.target}.mmx")
            if index.exists() and not is_refused(lambda: current.check([Index(str(index))])):
                verify(Index(str(index)))
            assert not is_done or len(mmapds.open(self.target)) > 0

    def parts(self):
        """Paths of the parts that tasks left; what is there is whole."""
        parts = list(Path(f"{self.target}.parts").glob(f"*{self.target.suffix}"))
        for part in parts:
            if part.suffix == ".mmx":
                verify(Index(str(part), Places(Files([self.path]))))
        return parts

    def left_over(self):
        """Names of what is neither there in the end nor a part."""
        names = {each.name for each in self.path.iterdir()}
        return names - self.files - {f"{self.writer.target}.parts"}
