"""Pages of the documentation: plain Markdown, all in the table of contents, and no link that leads nowhere."""

import importlib.util
import re
import unicodedata
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

import mmapds
from docs.pictures import make_report
from mmapds.cli.commands import new_parser
from tests.support.files import ROOT

LANGUAGES = {"", "console", "json", "py", "python", "re", "sh", "text"}
"""Those of fenced code."""


def loaded(name):
    """A module of docs/site, which is not a package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "site" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


site = loaded("assemble")
PAGES = [path.relative_to(ROOT) for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]]


def anchors(page):
    """The anchors that a forge gives the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    seen, found = Counter(), set()
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        heading = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).lower()
        kept = [c for c in heading if c in "-_ " or unicodedata.category(c)[0] in "LN"]
        slug = "".join(kept).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def test_every_page_stands_in_the_table_of_contents_once():
    """And every line of that is understood."""
    listed = Counter(entry.page for entry in site.contents())
    assert len(list(site.contents())) == len(re.findall("^- ", (ROOT / site.CONTENTS).read_text(), re.MULTILINE))
    assert set(listed) == {path for path in PAGES if path != site.CONTENTS}
    assert set(listed.values()) == {1}


def test_every_link_of_a_page_leads_somewhere():
    """Also to pages and files of the repository that are not listed."""
    pages, files = site.reached()
    assert Path("bench/results/bench_index.md") in pages
    assert Path("docs/pictures/packs.svg") in files
    for page in pages:
        for path, anchor in site.links(page):
            assert (ROOT / path).is_file(), f"{page}: {path}"
            assert not anchor or anchor in anchors(path), f"{page}: {path}#{anchor}"


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


def test_the_gallery_shows_every_report_that_is_made_with_its_command():
    text = (ROOT / "docs" / "gallery.md").read_text()
    pattern = r"\]\(pictures/([\w-]+)\.html\).*?^mmapds report corpus\.jsonl (.*?)$"
    rows = re.findall(pattern, text, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in rows] == list(make_report.REPORTS)
    parser = new_parser("mmapds", ["report"])
    for name, words in rows:
        found = vars(parser.parse_args(["report", "corpus.jsonl", *words.split()]))
        given = make_report.REPORTS[name]
        assert {option: found[option] for option in given} == given


def test_the_site_has_the_reports_of_the_gallery_anew(tmp_path, monkeypatch):
    (tmp_path / "docs" / "pictures").mkdir(parents=True)
    monkeypatch.setattr(make_report, "REPORTS", {"report-chunks": {"batch_size": 64, "samples": False}})
    monkeypatch.setattr(make_report, "write_corpus", partial(make_report.write_corpus, records=200))
    site.make_reports(tmp_path)
    (page,) = (tmp_path / "docs" / "pictures").iterdir()
    assert "<h1>" in page.read_text()
    assert "200" in page.read_text()


def test_the_reference_has_every_public_name_once():
    named = Counter(f"{module}.{name}" for module, names in site.reference().values() for name in names)
    assert set(named.values()) == {1}
    assert {f"mmapds.{name}" for name in [*mmapds.__all__, "open", "zip"]} <= set(named)
    assert {"mmapds.orders.Chunked", "mmapds.convert.convert", "mmapds.integrations.grain.DataSource"} <= set(named)


def test_code_in_docstrings_becomes_a_literal_block():
    code = ["", "    with f() as x:", "", "        x.write()", ""]
    section = ["", "Args:", "  x: one,", "", "    two.", ""]
    lines = ["Write.", *code, "Text.", *section]
    loaded("conf").examples_as_blocks(None, "", "", None, None, lines)
    assert lines == ["Write.", "", "::", "", *code[1:], "Text.", *section]
