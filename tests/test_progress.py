"""Progress bars: on terminals alone, with right totals, and never beyond their end."""

import os
import re
import sys

import pytest

import mmapds
from mmapds import cli
from tests.support.terminals import on_terminal

SHOW = """
from mmapds import cli
from mmapds.cli.commands import main
cli._DELAY = 0
raise SystemExit(main())
"""
"""A command whose bar does not wait."""


def bars(text):
    """What the bars show: title, amount and total."""
    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text)
    found = re.findall(r"([\w. ]+?) [━╸╺]+ ([\d.,]+ \w+)(?: of ([\d.,]+ \w+))?, [\d.,]+ \w+/s", plain)
    return [(title.strip(), amount, total) for title, amount, total in found]


@pytest.fixture
def large(write):
    path = write(b'{"n": 1, "text": "some text"}\n' * 200_000)  # 6.0 MB
    mmapds.build(path, length="n")
    return path


@pytest.mark.parametrize(
    ("arguments", "title", "total"),
    [
        (["index", "--force", "{}"], "train.jsonl", "6.0 MB"),
        (["index", "--force", "--hash", "{}.mmx"], "train.jsonl.mmx", "12.0 MB"),
        (["verify", "{}"], "train.jsonl", None),
        (["convert", "{}", "--fields", "n"], "train.jsonl", "200,000 records"),
        (["seekable", "{}"], "train.jsonl", "6.0 MB"),
    ],
)
def test_bars_have_the_size_of_the_sources_as_their_total(large, monkeypatch, arguments, title, total):
    monkeypatch.chdir(os.path.dirname(large))
    status, text = on_terminal("-c", SHOW, *(each.format("train.jsonl") for each in arguments), columns=120)
    assert status == 0
    found = bars(text)
    assert {each[0] for each in found} == {title}
    assert total is None or {each[2] for each in found if each[2]} == {total}


def test_a_bar_never_goes_beyond_its_end(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(cli, "_DELAY", 0)
    monkeypatch.setattr(cli, "_EVERY", 0)
    with cli.Progress(["a"], lambda _: 10, quiet=False) as bar:
        for count, expected in ((4, 4), (5, 9), (5, 10)):
            bar.update(count)
            assert bar._bar.tasks[0].completed == expected


def test_short_work_draws_nothing_and_loads_nothing(write):
    path = write([{"n": 1}])
    code = "import sys; from mmapds.index.__main__ import main; main(sys.argv[1:]); print('rich' in sys.modules)"
    status, text = on_terminal("-c", code, path)
    assert (status, text.splitlines()[-1]) == (0, "False")
    assert "\x1b" not in text
