"""The pages that have the tables: one of results, and the part of the documentation between two marks."""

import re

from bench.support.results import RESULTS, ROOT

from . import plots, tables

PAGE = ROOT / "docs" / "benchmarks.md"
PICTURES = ROOT / "docs" / "pictures"
MEASURED = RESULTS / "rivals.json"
BEGIN, END = "<!-- make rivals writes what follows -->", "<!-- make rivals wrote this -->"
ALT = {
    "samplers-time": "Time to the first index of a shuffled epoch over its records",
    "budgets-time": "Time to the first batch of a token budget over the records of an epoch",
}


def result(facts):
    """Return the page of bench/results."""
    return f"# rivals\n\nMade by `make rivals`.\n\n{tables.render(facts)}\n"


def documented(text, facts):
    """Return a page of the documentation with the tables and the plots between its marks."""
    shown = [f"![{ALT[name]}](pictures/rivals-{name}.svg)" for name, _ in plots.plots(facts)]
    body = "\n\n".join([BEGIN, tables.brief(facts), *shown, END])
    pattern = re.compile(re.escape(BEGIN) + ".*" + re.escape(END), re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise ValueError(f"docs/benchmarks.md: expected the marks {BEGIN} and {END} once")
    return pattern.sub(lambda _: body, text)


def write(facts):
    """Write the pages and the plots."""
    (RESULTS / "rivals.md").write_text(result(facts))
    PAGE.write_text(documented(PAGE.read_text(), facts))
    for name, text in plots.plots(facts):
        (PICTURES / f"rivals-{name}.svg").write_text(text)
