"""What users reported of their own files and trainers, each with the right outcome."""

import gzip
import json
import os
import re
import struct
import subprocess
import sys
import zlib
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tfrecord import example_pb2

import mmapds
from mmapds import bench, report
from mmapds.dataset.payloads import tf_example


def mode_of(path):
    return os.stat(path).st_mode & 0o777


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
    assert [mode_of(path) for path in made] == [0o600] * 5
    for path in made:
        os.chmod(path, 0o640)
    mmapds.build(source, force=True)
    mmapds.convert.convert(source, target, force=True)
    mmapds.seekable(source, packed, force=True)
    assert [mode_of(path) for path in made] == [0o640] * 5
    public = tmp_path / "b.jsonl"
    public.write_text('{"n": 1}\n')
    mmapds.build(public)
    assert mode_of(f"{public}.mmx") == 0o666 & ~_umask()


def _umask():
    found = os.umask(0)
    os.umask(found)
    return found


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


def thrice(sample):
    return sample["n"] * 3


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
    mmapds.build(path, columns={"twice": twice, "thrice": thrice}, workers=1)
    ds = mmapds.open(path)
    assert [ds.column(name).tolist() for name in ("twice", "thrice")] == [[60, 80], [90, 120]]


def test_an_index_of_no_record_gets_columns_too(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("")
    for columns in ({}, {"twice": twice}):
        with pytest.warns(UserWarning, match="found 0 records"):
            mmapds.build(path, columns=columns)
    assert mmapds.open(path).column("twice").tolist() == []


def test_a_sequence_example_has_its_context_and_its_lists():
    def feature(numbers):
        return example_pb2.Feature(int64_list={"value": numbers})

    context = example_pb2.Features(feature={"id": feature([7])})
    lists = {
        "frames": example_pb2.FeatureList(feature=[feature([1, 2]), feature([]), feature([3])]),
        "texts": example_pb2.FeatureList(feature=[example_pb2.Feature(bytes_list={"value": [b"a", b"b"]})]),
        "none": example_pb2.FeatureList(),
    }
    message = example_pb2.SequenceExample(context=context, feature_lists={"feature_list": lists})
    found = tf_example(message.SerializeToString())
    assert found["id"].tolist() == [7]
    assert [list(each) for each in found["frames"]] == [[1, 2], [], [3]]
    assert found["texts"] == [[b"a", b"b"]]
    assert found["none"] == []
    context.feature["frames"].CopyFrom(feature([1]))
    message = example_pb2.SequenceExample(context=context, feature_lists={"feature_list": lists})
    with pytest.raises(ValueError, match="feature list 'frames': expected a name that no feature has"):
        tf_example(message.SerializeToString())


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
    assert "put what builds under if __name__ == '__main__':" in done.stderr


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
        monkeypatch.setattr(bench, "_run", lambda trial, _: dict.fromkeys(("cold", "warm"), None) | trial)
        monkeypatch.setattr(bench, "recommend", lambda *_, **__: {})
        assert bench.bench(path, batch_size=5)["plan"] == plan
        assert report.report(path, batch_size=5, ranks=1)["plans"][0]["title"] == plan


# ---- messages whose command or advice really helps -------------------------------------------------------------------


def refused(work, *arguments, **options):
    with pytest.raises(mmapds.Error) as error:
        work(*arguments, **options)
    return str(error.value)


def run_shell(message):
    """Run the command that a message ends with; return the file that it writes."""
    command = re.search(r"; run: (.*)", message)[1].replace("python ", f"{sys.executable} ")
    subprocess.run(command, shell=True, check=True)
    return command.rpartition(" > ")[2]


TEXTS = {
    "GB18030": "你好世界。今天天气很好、我们去公园散步。",
    "SHIFT_JIS": "こんにちは、世界。今日はいい天気ですね。",
    "EUC-KR": "안녕하세요 세계 여러분, 오늘은 날씨가 좋습니다",
    "CP1251": "Привет, мир! Это простой текст, который надо прочитать.",
    "CP1252": "Un café à l'école, garçon: größer, señor",
    "UTF-16": "any text",
}


@pytest.mark.parametrize("encoding", TEXTS)
def test_text_in_another_encoding_is_converted_to_what_it_says(tmp_path, encoding):
    text = json.dumps({"text": TEXTS[encoding]}, ensure_ascii=False) + "\n"
    path, packed = tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"
    path.write_bytes(text.encode(encoding))
    packed.write_bytes(gzip.compress(text.encode(encoding)))
    for each in (path, packed):
        made = run_shell(refused(mmapds.build, each))
        assert mmapds.open(made, build=True)[0] == json.loads(text)
    mmapds.build(path, format="jsonl")
    with pytest.raises(mmapds.DecodeError, match=rf"found {encoding}.*; convert it by iconv -f {encoding} -t UTF-8"):
        mmapds.open(path)[0]
    path.write_bytes(b"\x98\x81\xff\xff\n" * 9)
    assert refused(mmapds.build, path).endswith(f"found text that is not UTF-8; run: file {path}")


def test_nan_is_named_with_the_decoder_that_reads_it(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": [1, -Infinity]}\n')
    assert "found -Infinity, which JSON lacks; give format='jsonl'" in refused(mmapds.build, path)
    path.write_text('{"x": NaN}\n{"x": 1}\n')
    assert "has NaN; open it with decode=json.loads; leave such" in refused(mmapds.build, path, validate=True)
    mmapds.build(path)
    assert refused(mmapds.open(path).__getitem__, 0).endswith("has NaN; open it with decode=json.loads (ds[0])")
    assert np.isnan(mmapds.open(path, decode=json.loads)[0]["x"])


def test_what_other_tools_read_is_unpacked_whole(tmp_path):
    lines, padded, records = [b'{"n": 1}\n', b'{"n": 2}\n'], tmp_path / "a.jsonl.gz", tmp_path / "a.tfrecord"
    padded.write_bytes(bytes(512).join(map(gzip.compress, lines)))
    assert list(mmapds.open(run_shell(refused(mmapds.build, padded)), build=True)) == [{"n": 1}, {"n": 2}]
    records.write_bytes(zlib.compress(struct.pack("<Q", 3) + bytes(4) + b"abc" + bytes(4)))
    message = refused(mmapds.build, records)
    assert "compressed (zlib)" in message
    with open(run_shell(message), "rb") as file:
        assert file.read()[12:15] == b"abc"


def test_files_in_directories_below_are_found_by_the_pattern_that_is_named(tmp_path):
    (tmp_path / "d/train").mkdir(parents=True)
    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "d/train/x.parquet")
    pattern = re.search("found train; give (.*) for those below", refused(mmapds.convert.convert, tmp_path / "d"))[1]
    mmapds.convert.convert(pattern.strip("'"), tmp_path / "all.mma")
    assert [sample["n"] for sample in mmapds.open(tmp_path / "all.mma")] == [1, 2]


def test_seconds_are_a_column_and_no_lengths_until_they_are_rounded(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"s": 1.5}\n{"s": 0.25}\n')
    assert "keep it by columns= under another name, or round it by" in refused(mmapds.build, path, length="s")
    mmapds.build(path, columns={"seconds": "s"})
    mmapds.add_column(path, "length", lambda sample: round(100 * sample["s"]))
    assert mmapds.open(path).lengths.tolist() == [150, 25]


def test_a_command_or_a_locale_that_is_not_right_is_one_line(tmp_path):
    (tmp_path / "ü.jsonl").write_text('{"n": 1}\n')
    mmapds.build(tmp_path / "ü.jsonl", out=tmp_path / "all.mmx")
    other = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for command, name in (("index", "ü.jsonl"), ("head", "all.mmx"), ("verify", "all.mmx"), ("verfy", "all.mmx")):
        given = [sys.executable, "-m", "mmapds", command, name]
        done = subprocess.run(given, cwd=tmp_path, env=other, capture_output=True, text=True)
        last = done.stderr.splitlines()[-1]
        assert last.endswith("the nearest is verify" if command == "verfy" else "not as ascii; set PYTHONUTF8=1")
        assert len(done.stderr.splitlines()) == 1 + (command == "verfy")
