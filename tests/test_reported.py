"""What users reported of their own files and trainers, each with the right outcome."""

import gzip
import os
import subprocess
import sys
from functools import partial

import pytest
from tfrecord import example_pb2

import mmapds
from mmapds import bench, report
from mmapds.dataset.payloads import tf_example


def test_what_is_made_of_a_private_file_is_private_and_a_mode_is_kept(tmp_path):
    source, target = tmp_path / "a.jsonl", tmp_path / "a.mma"
    source.write_text('{"n": 1}\n')
    source.chmod(0o600)
    mmapds.build(source)
    mmapds.convert.convert(source, target)
    view, packed = tmp_path / "view.mmx", tmp_path / "a.jsonl.zst"
    mmapds.open(source)[:1].save(view)
    mmapds.seekable(source, packed)
    made = [f"{source}.mmx", target, f"{target}.mmx", view, packed]
    assert {os.stat(path).st_mode & 0o777 for path in made} == {0o600}
    for path in made:
        os.chmod(path, 0o640)
    mmapds.build(source, force=True)
    mmapds.convert.convert(source, target, force=True)
    mmapds.seekable(source, packed, force=True)
    assert {os.stat(path).st_mode & 0o777 for path in made} == {0o640}


calls = []


def twice(sample):
    calls.append(sample["n"])
    return sample["n"] * 2


def write_numbers(path, numbers):
    path.write_text("".join(f'{{"n": {n}}}\n' for n in numbers))


def test_a_function_computes_what_is_new_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("mmapds.computed_columns._KEPT", 3)
    out, parts = tmp_path / "all.mmx", [tmp_path / f"{k}.jsonl" for k in range(4)]

    def build(version=None, **options):
        calls.clear()
        mmapds.build(f"{tmp_path}/*.jsonl", out=out, columns={"twice": twice}, version=version, workers=1, **options)
        ds = mmapds.open(out)
        assert ds.column("twice").tolist() == [2 * sample["n"] for sample in ds]
        return list(calls)

    for k in (0, 1, 3):
        write_numbers(parts[k], range(10 * k, 10 * k + 5))
    assert len(build()) == 15
    assert build() == []
    write_numbers(parts[2], [20, 21])
    write_numbers(parts[0], [-7, 8])
    assert build() == [-7, 8, 20, 21]
    with open(parts[1], "a") as file:
        file.write('{"n": 3}\n')
    assert build(grown=True) == [3]
    assert len(build(version=2)) == 15
    assert len(build(version=2, force=True)) == 15
    parts[3].unlink()
    assert build(version=2) == []
    monkeypatch.setattr(twice, "__module__", "__main__")  # whose body may be another in the next cell of a notebook
    assert len(build()) == len(build()) == 10


def test_an_index_that_is_replaced_meanwhile_gives_no_old_numbers(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    write_numbers(path, [1, 2])
    mmapds.build(path, columns={"twice": twice}, workers=1)
    summarise = mmapds.index.build.summarise

    def replaced(index):
        monkeypatch.undo()
        write_numbers(path, [30, 40])
        mmapds.build(path, columns={"twice": twice}, workers=1)
        return summarise(index)

    monkeypatch.setattr(mmapds.index.build, "summarise", replaced)
    mmapds.build(path, columns={"twice": twice, "thrice": lambda sample: 3 * sample["n"]}, workers=1)
    ds = mmapds.open(path)
    assert [ds.column(name).tolist() for name in ("twice", "thrice")] == [[60, 80], [90, 120]]


def test_an_index_of_no_record_gets_columns_too(write):
    path = write(b"")
    for columns in ({}, {"twice": twice}):
        mmapds.build(path, columns=columns)
    assert mmapds.open(path).column("twice").tolist() == []


def test_a_sequence_example_has_its_context_and_its_lists():
    def feature(numbers):
        return example_pb2.Feature(int64_list={"value": numbers})

    def read(name):
        lists = {
            "frames": example_pb2.FeatureList(feature=[feature([1, 2]), feature([]), feature([3])]),
            "texts": example_pb2.FeatureList(feature=[example_pb2.Feature(bytes_list={"value": [b"a", b"b"]})]),
            "none": example_pb2.FeatureList(),
        }
        context = example_pb2.Features(feature={name: feature([7])})
        message = example_pb2.SequenceExample(context=context, feature_lists={"feature_list": lists})
        return tf_example(message.SerializeToString())

    found = read("id")
    assert (found["id"].tolist(), [list(each) for each in found["frames"]]) == ([7], [[1, 2], [], [3]])
    assert (found["texts"], found["none"]) == ([[b"a", b"b"]], [])
    with pytest.raises(ValueError, match="feature list 'frames': expected a name that no feature has"):
        read("frames")


def test_skipping_bad_lines_skips_lines_of_another_type(tmp_path):
    path = tmp_path / "chats.jsonl"
    lines = ['{"messages": [1, 2]}', "[1]", '{"messages": 5}', '"x"', "{", '{"messages": []}', "7"]
    path.write_text("\n".join(lines))
    with pytest.raises(mmapds.ColumnError, match="found an array; leave such lines out with bad='skip'"):
        mmapds.build(path, length="items(messages)")
    with pytest.warns(
        UserWarning,
        match=r"chats.jsonl:2 \(byte 21\): expected JSON with fields .* found a bad line \(5 such lines",
    ):
        mmapds.build(path, length="items(messages)", bad="skip")
    ds = mmapds.open(path)
    assert list(ds) == [{"messages": [1, 2]}, {"messages": []}]
    assert ds.lengths.tolist() == [2, 0]


UNGUARDED = """
import multiprocessing, mmapds
multiprocessing.set_start_method("spawn", force=True)

def twice(sample):
    return sample["n"] * 2

mmapds.add_column({path!r}, "twice", twice, workers=2)
"""


def test_a_script_without_a_main_guard_ends_with_an_error_that_names_it(tmp_path):
    path, script = tmp_path / "a.jsonl", tmp_path / "script.py"
    write_numbers(path, range(10_000))
    mmapds.build(path)
    script.write_text(UNGUARDED.format(path=str(path)))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.returncode
    assert "build only under if __name__ == '__main__':" in done.stderr


def test_a_record_that_cannot_be_decoded_gets_the_default_of_a_column(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1}\n{"n": \n{"n": 3}\n')
    mmapds.build(path)
    with pytest.raises(mmapds.DecodeError, match=r"a\.jsonl:2"):
        mmapds.add_column(path, "twice", twice)
    mmapds.add_column(path, "twice", twice, default=-1)
    assert mmapds.open(path).column("twice").tolist() == [2, -1, 6]


@pytest.mark.parametrize("options", [{}, {"length": "chars(a)"}])
def test_a_small_file_that_holds_a_huge_record_is_refused(tmp_path, options):
    path = tmp_path / "bomb.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": "%s"}\n{"a": ""}\n' % (b"x" * (3 << 20))))
    with pytest.raises(mmapds.FormatError, match=r"records of up to 1,048,576 bytes, found one of [23],.* or more"):
        mmapds.build(path, max_record=1 << 20, **options)
    mmapds.build(path, max_record=4 << 20, **options)
    assert mmapds.build(path)  # the limit stays that of the index
    assert [len(sample["a"]) for sample in mmapds.open(path)] == [3 << 20, 0]


def test_a_benchmark_and_a_report_read_compressed_sources_in_chunks_of_blocks(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"n": 1}\n' * 10))
    mmapds.build(path)
    for limit, plan in ((1 << 20, "batches of 5"), (10, "batches of 5, chunks of blocks")):
        for module in (bench, report):
            monkeypatch.setattr(module, "open_dataset", partial(mmapds.open, block_cache=limit))
        monkeypatch.setattr(bench, "_run", lambda trial, *_: dict.fromkeys(("cold", "warm"), None) | trial)
        monkeypatch.setattr(bench, "recommend", lambda *_, **__: {})
        assert bench.bench(path, batch_size=5)["plan"] == plan
        assert report.report(path, batch_size=5, ranks=1)["plans"][0]["title"] == plan
