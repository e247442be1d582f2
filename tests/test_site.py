"""Pages of the documentation: plain Markdown, all in the table of contents, and no link that leads nowhere."""

import importlib.util
import re
from collections import Counter
from pathlib import Path

import pytest

import mmapds
from docs.pictures import draw_flow, draw_terminals, make_report
from mmapds.cli.commands import new_parser
from tests.support.files import ROOT

LANGUAGES = {"", "console", "json", "py", "python", "re", "sh", "text"}
"""Those of fenced code."""


spec = importlib.util.spec_from_file_location("assemble", ROOT / "docs" / "site" / "assemble.py")
site = importlib.util.module_from_spec(spec)
spec.loader.exec_module(site)
PAGES = [path.relative_to(ROOT) for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]]


def test_every_page_stands_in_the_table_of_contents_once():
    """And every line of that is understood."""
    listed = Counter(entry.page for entry in site.contents())
    assert len(list(site.contents())) == len(re.findall("^- ", (ROOT / site.CONTENTS).read_text(), re.MULTILINE))
    assert set(listed) == {site.NOTEBOOK, *(path for path in PAGES if path != site.CONTENTS)}
    assert set(listed.values()) == {1}


def test_every_link_of_a_page_leads_somewhere():
    """Also to pages and files of the repository that are not listed."""
    pages, files = site.reached()
    assert Path("bench/results/bench_index.md") in pages
    assert Path("docs/pictures/packs.svg") in files
    assert (ROOT / "docs/pictures/flow.svg").read_text() == draw_flow.picture() + "\n"
    for page in pages:
        for path, _ in site.links(page):  # `make docs` follows anchors
            assert (ROOT / path).is_file(), f"{page}: {path}"


def test_the_reference_of_the_site_has_every_module_with_its_names():
    """Which `make docs` makes pages of."""
    found = site.reference()
    listed = {name for module, names in found.values() if module == "mmapds" for name in names}
    assert listed == {*mmapds.__all__, "open", "zip"}
    assert "OrderSampler" in found["mmapds.integrations.grain"][1]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_page_is_plain_markdown(page):
    """CommonMark, tables and fenced code: nothing that only one renderer knows, and no HTML."""
    text = (ROOT / page).read_text()
    assert text.startswith("# ")
    fences = re.findall(r"^```(.*)$", text, re.MULTILINE)
    assert set(fences[::2]) <= LANGUAGES
    assert not any(fences[1::2])
    plain = site.prose(text)
    assert not re.findall(r"^:::|^\.\. |^\(.*\)=$|^\+\+\+|^%|^~~~|^\$\$|^> \[!|^\s*- \[[ x]\]", plain, re.MULTILINE)
    assert not re.findall(r"\{\w+\}`|</?[a-z]+[^>]*>|\[\^|\[\[", plain)


@pytest.mark.parametrize("name", draw_terminals.TERMINALS)
def test_a_picture_of_a_terminal_is_small_and_loads_nothing(name):
    """And shows its commands, without a path of the machine that drew it."""
    text = (ROOT / "docs" / "pictures" / f"terminal-{name}.svg").read_text()
    assert len(text) < 40_000
    assert set(re.findall(r"\w+://[^\"\s<]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.findall(r"@font-face|@import|url\((?!#)|/tmp|/home|/root", text)
    shown = re.sub("<[^>]+>", "", text.replace("&#160;", " "))
    assert not [command for command in draw_terminals.TERMINALS[name] if f"mmapds {command}" not in shown]


def test_the_gallery_shows_every_report_that_is_made_with_its_command():
    text = (ROOT / "docs" / "gallery.md").read_text()
    pattern = r"^`([\w-]+)\.html`:.*?^mmapds report corpus\.jsonl (.*?)$"
    rows = re.findall(pattern, text, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in rows] == list(make_report.REPORTS)
    parser = new_parser("mmapds", ["report"])
    for name, words in rows:
        found = vars(parser.parse_args(["report", "corpus.jsonl", *words.split()]))
        given = make_report.REPORTS[name]
        assert {option: found[option] for option in given} == given
