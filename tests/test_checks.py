"""Whether a source is still the one that was indexed: copies are, edited ones are not."""

import os
import pickle
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import xxhash

import mmapds
from mmapds.index.build import Request, build_each
from mmapds.index.verify import verify
from mmapds.storage import current
from mmapds.storage.current import BLOCK, BLOCKS, COVERED, check_source, fingerprint, full_hash
from mmapds.storage.index_file import Index
from tests.support.commands import command

RECORDS = 50_000
SAMPLED = 7 * (20 * RECORDS - BLOCK) // (BLOCKS - 1) + 5  # a byte of the eighth block
BETWEEN = SAMPLED + BLOCK + 20


def lines(count):
    return b"".join(b'{"n":%7d,"m":%d}\n' % (number, number % 10) for number in range(count))


@pytest.fixture
def corpus(write):
    """A megabyte of records of 20 bytes, of which a fingerprint sees a quarter."""
    path = write(lines(RECORDS))
    assert os.path.getsize(path) == 20 * RECORDS
    mmapds.build(path, length="n")
    return path


def edit(path, at, *, keep_time=False):
    """Change a digit of the record that has byte `at`, in place."""
    found = os.stat(path)
    with open(path, "r+b") as file:
        file.seek(at // 20 * 20 + 17)
        digit = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(b"7" if digit != b"7" else b"8")
    time = found.st_mtime_ns + (0 if keep_time else 10**9)
    os.utime(path, ns=(time, time))


def touch(path):
    os.utime(path, ns=(1_234_567_890, 1_234_567_890))


def quiet_open(path, **options):
    """Open without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return mmapds.open(path, **options)


def oracle(data):
    size = len(data).to_bytes(8, "little")
    if len(data) <= 262_144:
        return xxhash.xxh3_64(size + data).hexdigest()
    begins = [block * (len(data) - 16_384) // 15 for block in range(16)]
    return xxhash.xxh3_64(size + b"".join(data[at : at + 16_384] for at in begins)).hexdigest()


@pytest.mark.parametrize("size", [0, 1, COVERED - 1, COVERED, COVERED + 1, COVERED + 17, 5 * COVERED])
def test_a_fingerprint_is_what_the_specification_says(tmp_path, size):
    path = tmp_path / "x"
    path.write_bytes(np.random.default_rng(size).bytes(size))
    found = fingerprint(str(path))
    assert (found.hex, found.size, found.mtime_ns) == (oracle(path.read_bytes()), size, os.stat(path).st_mtime_ns)
    assert full_hash(str(path)).hex == xxhash.xxh3_128(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("digest", [fingerprint, full_hash])
def test_what_is_no_file_is_refused_at_once(tmp_path, digest):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(mmapds.SourceError, match="expected a regular file, found a FIFO"):
        digest(str(tmp_path / "fifo"))
    with pytest.raises(mmapds.SourceError, match="missing: no such file"):
        digest(str(tmp_path / "missing"))


def test_a_source_that_changes_while_it_is_hashed_is_an_error(corpus):
    with pytest.raises(mmapds.SourceError, match="changed while it was read: same size, another time"):
        full_hash(str(corpus), lambda _: os.utime(corpus, ns=(0, 0)))


def test_a_source_that_is_replaced_while_it_is_opened_is_an_error(corpus):
    mmapds.build(corpus)
    os.utime(corpus, ns=(0, 0))
    with pytest.raises(mmapds.StaleIndexError, match="was replaced while it was opened; run: "):
        check_source(Index(f"{corpus}.mmx"), 0, os.path.getsize(corpus), 1)


@pytest.mark.parametrize(
    ("at", "keep_time", "refusing"),
    [
        (SAMPLED, True, ["sample", "full"]),
        (0, True, ["sample", "full"]),
        (20 * RECORDS - 1, True, ["sample", "full"]),
        (BETWEEN, True, ["full"]),
        (SAMPLED, False, ["stat", "sample", "full"]),
        (BETWEEN, False, ["full"]),
    ],
)
def test_each_check_sees_what_it_says(corpus, at, keep_time, refusing):
    mmapds.build(corpus, hash=True)
    edit(corpus, at, keep_time=keep_time)
    for check in ("stat", "sample", "full", "none"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if check in refusing:
                with pytest.raises(mmapds.StaleIndexError, match="has other content"):
                    mmapds.open(corpus, check=check)
            else:
                assert mmapds.open(corpus, check=check)[at // 20]["m"] in (7, 8)


def test_another_size_is_refused_unless_nothing_is_compared(corpus):
    with open(corpus, "ab") as file:
        file.write(b"{}\n")
    for check in ("stat", "sample", "full"):
        with pytest.raises(mmapds.StaleIndexError, match="was 1000000 bytes when indexed and is 1000003 now"):
            mmapds.open(corpus, check=check)
    assert len(quiet_open(corpus, check="none")) == RECORDS


def test_without_a_check_reads_stay_in_the_file(corpus):
    ds = mmapds.open(corpus, check="none")
    os.truncate(corpus, 30)
    assert ds[0] == {"n": 0, "m": 0}
    with pytest.raises(mmapds.FormatError, match=r"record 2 of .*: expected bytes within 0 to 30, found 40 to 60"):
        ds[2]


@pytest.mark.parametrize("check", ["stats", None])
def test_other_checks_are_refused(corpus, check):
    expected = "expected one of 'stat', 'sample', 'full', 'none'"
    with pytest.raises(mmapds.Error, match=f"check = {check!r}, {expected}"):
        mmapds.open(corpus, check=check)


def test_full_says_how_to_store_hashes(corpus):
    with pytest.raises(mmapds.Error, match=r"check = 'full': expected a hash of each source") as error:
        mmapds.open(corpus, check="full")
    _, _, run = str(error.value).partition("; run: python -m mmapds.index ")
    before = Index(f"{corpus}.mmx")
    assert command(*run.split()).returncode == 0
    index = Index(f"{corpus}.mmx")
    assert index.sources[0].xxh3_128 == xxhash.xxh3_128(Path(corpus).read_bytes()).hexdigest()
    assert index.sources == [before.sources[0]._replace(xxh3_128=index.sources[0].xxh3_128)]
    assert len(quiet_open(corpus, check="full")) == RECORDS


def test_a_rebuild_has_hashes_where_the_index_had_them(corpus):
    mmapds.build(corpus, hash=True)
    with open(corpus, "ab") as file:
        file.write(b'{"n": 1}\n')
    mmapds.build(corpus)
    assert len(mmapds.open(corpus, check="full")) == RECORDS + 1
    mmapds.build(corpus, force=True)
    assert len(mmapds.open(corpus, check="full")) == RECORDS + 1


# ---- copies ------------------------------------------------------------------------------------------------------


def copied(corpus, tmp_path):
    """A copy without times, and its index."""
    (tmp_path / "copy").mkdir()
    path = str(tmp_path / "copy" / "train.jsonl")
    shutil.copyfile(corpus, path)
    shutil.copyfile(f"{corpus}.mmx", f"{path}.mmx")
    touch(path)
    return path


def test_a_copy_without_times_opens_with_a_warning_that_its_command_ends(corpus, tmp_path):
    path = copied(corpus, tmp_path)
    before = Path(f"{path}.mmx").read_bytes()
    with pytest.warns(UserWarning, match="expected the time of change of when it was indexed, found another") as found:
        ds = mmapds.open(path)
    assert len(found) == 1
    assert found[0].filename == __file__
    assert ds[777] == {"n": 777, "m": 7}
    assert quiet_open(path, check="sample")[3]["n"] == 3
    assert len(quiet_open(path, check="none")) == RECORDS
    assert Path(f"{path}.mmx").read_bytes() == before
    run = str(found[0].message).partition("; run: python -m mmapds.index ")[2].partition(" (")[0]
    assert command(run).returncode == 0
    assert quiet_open(path)[3]["n"] == 3
    verify(Index(f"{path}.mmx"))


def test_a_small_copy_is_compared_whole(write, tmp_path):
    path = write(lines(100))
    mmapds.build(path)
    path = copied(path, tmp_path)
    assert len(quiet_open(path)) == 100
    edit(path, 1000)
    with pytest.raises(mmapds.StaleIndexError, match="has other content"):
        mmapds.open(path)


def test_open_with_build_keeps_the_index_of_a_copy(corpus, tmp_path):
    path = copied(corpus, tmp_path)
    before = Path(f"{path}.mmx").read_bytes()
    quiet_open(path, build=True, check="sample")
    assert Path(f"{path}.mmx").read_bytes() == before
    edit(path, SAMPLED)
    assert quiet_open(path, build=True)[SAMPLED // 20]["m"] in (7, 8)


def test_a_build_of_a_copy_does_not_drop_computed_columns(corpus, tmp_path):
    mmapds.add_column(corpus, "square", np.arange(RECORDS) ** 2)
    path = copied(corpus, tmp_path)
    with pytest.raises(mmapds.ColumnError, match="column 'square' was computed in Python and a rebuild loses it"):
        mmapds.build(path)
    ds = quiet_open(path, check="sample")
    assert (ds.columns, int(ds.column("square")[99])) == (["length", "square"], 99**2)


@pytest.mark.parametrize(("at", "keep_time"), [(SAMPLED, True), (BETWEEN, False)])
def test_a_build_sees_an_edit(corpus, at, keep_time):
    mmapds.build(corpus, hash=True, columns={"m": "m"})
    edit(corpus, at, keep_time=keep_time)
    (done,) = build_each([corpus], Request())
    assert done.fresh
    assert int(quiet_open(corpus).column("m")[at // 20]) in (7, 8)
    verify(Index(f"{corpus}.mmx"))


def test_a_build_compares_what_it_keeps_once(write, tmp_path, monkeypatch):
    paths = [write([number], f"{number}.jsonl") for number in range(5)]
    mmapds.build(paths, out=tmp_path / "all.mmx")
    write([7, 8], "4.jsonl")
    counted = count_digests(monkeypatch)
    mmapds.build(paths, out=tmp_path / "all.mmx")
    assert sorted(set(counted)) == paths  # the last one for the new index


def test_one_warning_for_many_copies(write, tmp_path):
    paths = [write(b"1\n" * COVERED, f"{number}.jsonl") for number in range(5)]
    for path in paths:
        mmapds.build(path)
        touch(path)
    with pytest.warns(UserWarning, match=rf"0.jsonl and 4 more: .*; run: python -m mmapds.index {tmp_path}") as found:
        mmapds.open(tmp_path)
    assert len(found) == 1


def count_digests(monkeypatch):
    """Count how often sources are read for a digest, in this process."""
    counted = []
    opened = current.open_regular
    monkeypatch.setattr(current, "open_regular", lambda path: counted.append(path) or opened(path))
    return counted


@pytest.mark.parametrize(
    ("check", "opening", "reading"), [("stat", 0, 0), ("sample", 1, 0), ("full", 1, 0), ("none", 0, 0)]
)
def test_a_dataset_from_a_pickle_does_not_compare_again(corpus, monkeypatch, check, opening, reading):
    mmapds.build(corpus, hash=True)
    counted = count_digests(monkeypatch)
    ds = mmapds.open(corpus, check=check)
    assert len(counted) == opening
    ds[0]
    again = pickle.loads(pickle.dumps(ds))
    assert (again[5]["n"], len(counted)) == (5, opening + reading)
    assert pickle.loads(pickle.dumps(again))[6]["n"] == 6


def test_none_travels_to_workers(corpus):
    ds = mmapds.open(corpus, check="none")
    with open(corpus, "ab") as file:
        file.write(b'{"n": 1}\n')
    assert pickle.loads(pickle.dumps(ds))[1]["n"] == 1
    with pytest.raises(mmapds.Error, match=r"datasets\[1\]: expected decode, access, io, check and on_error as of"):
        mmapds.concat([ds, mmapds.open(corpus, build=True)])


def test_a_source_replaced_after_opening_is_compared_when_it_is_read(corpus):
    ds = mmapds.open(corpus)
    touch(corpus)
    assert ds[1]["n"] == 1
    ds = pickle.loads(pickle.dumps(ds))
    edit(corpus, 0)
    with pytest.raises(mmapds.StaleIndexError, match="has other content"):
        ds[1]
