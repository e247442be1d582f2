"""Progress bars: on terminals alone, with right totals, and never beyond their end."""

import os
import re
import sys

import pytest

import mmapds
from mmapds import cli
from tests.support.terminals import on_terminal

SHOW = """
import sys
from mmapds import cli
from mmapds.cli.commands import main
cli._DELAY = 0
for line in sys.argv[1:]:
    print("status", main(line.split()))
"""
"""Commands whose bars do not wait."""


def test_bars_have_the_size_of_the_sources_as_their_total(write, monkeypatch):
    path = write(b'{"n": 1, "text": "some text"}\n' * 200_000)  # 6.0 MB
    mmapds.build(path, length="n")
    monkeypatch.chdir(os.path.dirname(path))
    expected = {
        "index --force train.jsonl": ("train.jsonl", "6.0 MB"),
        "index --force --hash train.jsonl.mmx": ("train.jsonl.mmx", "12.0 MB"),
        "verify train.jsonl": ("train.jsonl", None),
        "convert train.jsonl --fields n": ("train.jsonl", "200,000 records"),
        "seekable train.jsonl": ("train.jsonl", "6.0 MB"),
    }
    status, text = on_terminal("-c", SHOW, *expected, columns=120)
    assert status == 0
    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text)
    parts = re.split(r"status (\d+)", plain)
    assert parts[1::2] == ["0"] * len(expected)
    for part, (title, total) in zip(parts[::2], expected.values(), strict=False):
        found = re.findall(r"([\w. ]+?) [━╸╺]+ [\d.,]+ \w+(?: of ([\d.,]+ \w+))?, [\d.,]+ \w+/s", part)
        assert {each.strip() for each, _ in found} == {title}
        assert total is None or {each for _, each in found if each} == {total}


def test_a_column_that_is_computed_has_a_bar(write):
    path = write([[1]] * 9000)
    mmapds.build(path)
    status, text = on_terminal("-c", "import sys, mmapds; mmapds.add_column(sys.argv[1], 'x', len, workers=2)", path)
    assert (status, "column 'x'" in text, "9000/9000" in text) == (0, True, True)


@pytest.mark.parametrize("how", ["quiet", "a pipe"])
def test_no_bar_is_drawn(how, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: how == "quiet")
    monkeypatch.setattr(cli, "_DELAY", 0)
    with cli.Progress(["a"], lambda _: 10, quiet=how == "quiet") as bar:
        bar.update(4)
    assert capsys.readouterr() == ("", "")
