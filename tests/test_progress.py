"""Progress bars: on terminals alone, with right totals, and never beyond their end."""

import os
import re
import sys
from pathlib import Path

import pytest

import mmapds
from mmapds import progress
from mmapds.cli.index import bytes_to_build
from mmapds.index.build import Request, build_each
from mmapds.storage.sources import Roots
from tests.support.terminals import on_terminal

SHOW = """
from mmapds import progress
from mmapds.cli.commands import main
progress._DELAY = 0
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


def test_what_is_built_is_what_was_said(write, tmp_path):
    paths = [write(b'{"n": 1}\n' * (number + 1) * 1000, f"{number}.jsonl") for number in range(3)]
    out = str(tmp_path / "all.mmx")
    for given in ({"paths": paths}, {"paths": paths, "out": out}, {"paths": [out]}, {"paths": paths[:2]}):
        for hashes in (False, True):
            reported = []
            expected = bytes_to_build(given["paths"], hashes=hashes, roots=Roots())
            list(build_each(request=Request(hash=hashes, force=True, report=reported.append), **given))
            assert sum(reported) == expected
        for path in (out, *(f"{each}.mmx" for each in paths)):
            Path(path).unlink(missing_ok=True)
        mmapds.build(paths, out=out)


def test_a_bar_never_goes_beyond_its_end(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(progress, "_DELAY", 0)
    monkeypatch.setattr(progress, "_EVERY", 0)
    with progress.Progress("a", total=lambda: 10) as bar:
        for count, expected in ((4, 4), (5, 9), (5, 10)):
            bar.update(count)
            assert bar._bar.tasks[0].completed == expected


def test_short_work_draws_nothing_and_loads_nothing(write):
    path = write([{"n": 1}])
    code = "import sys; from mmapds.index.__main__ import main; main(sys.argv[1:]); print('rich' in sys.modules)"
    status, text = on_terminal("-c", code, path)
    assert (status, text.splitlines()[-1]) == (0, "False")
    assert "\x1b" not in text


def test_ctrl_c_leaves_one_line_and_no_bar(large):
    code = f"""
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs are started without
from mmapds.index import verify
before = verify._check_records
def interrupt(*arguments):
    os.kill(os.getpid(), signal.SIGINT)
    return before(*arguments)
verify._check_records = interrupt
from mmapds.cli.commands import main
raise SystemExit(main(["verify", {large!r}]))
"""
    status, text = on_terminal("-c", code)
    assert status == 130
    assert re.split(r"[\r\n]+", text.rstrip("\n"))[-1].strip() == "interrupted"
    assert "Traceback" not in text
