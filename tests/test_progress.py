"""Progress bars: on terminals alone, with right totals, and never beyond their end."""

import os
import re
import sys

import pytest

import mmapds
from mmapds import cli
from mmapds.index.amount import bytes_to_build
from mmapds.index.build import ColumnRequest, build_each
from mmapds.storage.roots import Roots
from tests.support.commands import mmapds as command
from tests.support.terminals import on_terminal


def bars(text):
    """What the bars show: title, percentage or None, and total."""
    found = re.findall(r"([\w. ]+): +(?:(\d+)%\|[^|]*\|)? ?([\d.]+[kMG]?)(?:/([\d.]+[kMG]?))? ", text)
    return [(title.strip(), percent and int(percent), total) for title, percent, _, total in found]


@pytest.fixture
def large(write):
    path = write(b'{"n": 1, "text": "some text"}\n' * 200_000)  # 6.0 MB
    mmapds.build(path, length="n")
    return path


@pytest.mark.parametrize(
    ("arguments", "title", "total"),
    [
        (["index", "--force", "{}"], "train.jsonl", "6.00M"),
        (["index", "--force", "{}.mmx"], "train.jsonl.mmx", "6.00M"),
        (["index", "--force", "--hash", "{}.mmx"], "train.jsonl.mmx", "12.0M"),
        (["index", "{}"], "train.jsonl", "6.00M"),
        (["verify", "{}"], "train.jsonl", None),
        (["convert", "{}", "--fields", "n"], "train.jsonl", "200k"),
        (["seekable", "{}"], "train.jsonl", "6.00M"),
    ],
)
def test_bars_have_the_size_of_the_sources_as_their_total(large, monkeypatch, arguments, title, total):
    monkeypatch.chdir(os.path.dirname(large))
    status, text = on_terminal("-m", "mmapds", *(each.format("train.jsonl") for each in arguments), columns=100)
    assert status == 0
    found = [each for each in bars(text) if each[2]]
    assert {each[0] for each in found} == {title}
    assert found[-1][1] == 100
    assert len({each[2] for each in found}) == 1
    assert total in (None, found[0][2])


def test_what_is_built_is_what_was_said(write, tmp_path):
    paths = [write(b'{"n": 1}\n' * (number + 1) * 1000, f"{number}.jsonl") for number in range(3)]
    out = str(tmp_path / "all.mmx")
    for given in ({"paths": paths}, {"paths": paths, "out": out}, {"paths": [out]}, {"paths": [out, paths[0]]}):
        for hashes in (False, True, False):  # an index that has hashes keeps them
            reported, done = [], []
            expected = bytes_to_build(**given, hashes=hashes, roots=Roots())
            request = ColumnRequest(hash=hashes)
            for _ in build_each(**given, request=request, force=True, report=reported.append):
                done.append(sum(reported))
            assert [end - begin for begin, end in zip([0, *done], done, strict=False)] == expected


def test_nothing_is_shown_where_there_is_no_terminal(large):
    for arguments in (["index", "--force", large], ["verify", large], ["convert", large, "--fields", "n"]):
        ran = command(*arguments)
        assert (ran.returncode, ran.stderr) == (0, "")


def test_a_bar_never_goes_beyond_its_end(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with cli.Progress(["a"], unit="B", total=lambda: 10, quiet=False) as progress:
        for count, expected in ((4, 4), (5, 9), (5, 10), (5, 10)):
            progress.update(count)
            assert progress._bar.n == expected
        progress.reach(3)
        assert progress._bar.n == 3


def test_ctrl_c_leaves_one_line_and_no_bar(large):
    code = f"""
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs are started without
from mmapds.index import verify
before = verify._check_sources
def interrupt(*arguments):
    os.kill(os.getpid(), signal.SIGINT)
    return before(*arguments)
verify._check_sources = interrupt
from mmapds.cli.commands import main
raise SystemExit(main(["verify", {large!r}]))
"""
    status, text = on_terminal("-c", code)
    assert status == 130
    assert re.split(r"[\r\n]+", text.rstrip("\n"))[-1].strip() == "interrupted"
    assert "Traceback" not in text
