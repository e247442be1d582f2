"""The page of a report: one HTML file that needs no other, with no script in it."""

from typing import Any

from . import sections
from .markup import text_of
from .style import CSS
from .verdicts import percent, verdicts

Facts = dict[str, Any]

# A browser that heeds this runs no script and asks no server for anything, whatever a sample may hold.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

_TITLES = {
    "covers": "What it covers",
    "lengths": "Lengths",
    "batches": "Batches",
    "shuffle": "Shuffle",
    "reads": "Reads",
    "loader": "Loader",
    "training": "Training run",
    "samples": "Samples",
}


def page(facts: Facts) -> str:
    """Return the page; the same facts give the same page."""
    made = {name: getattr(sections, name)(title, facts) for name, title in _TITLES.items()}
    shown = {name: body for name, body in made.items() if body}
    links = "".join(f'<a href="#{name}">{text_of(_TITLES[name])}</a>' for name in shown)
    title = text_of(facts["title"])
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}: report</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<style>\n{CSS}\n</style>\n</head>\n<body>\n"
        f'<header>\n<p class="kind">mmapds report</p>\n<h1>{title}</h1>\n{_plans(facts)}'
        f'{_tiles(facts)}\n{_verdicts(facts)}\n<nav aria-label="Sections">{links}</nav>\n</header>\n'
        f"<main>\n{chr(10).join(shown.values())}\n</main>\n{_footer(facts)}\n</body>\n</html>\n"
    )


def _plans(facts: Facts) -> str:
    if not facts["plans"]:
        return ""
    titles = " beside ".join(plan["title"] for plan in facts["plans"])
    ranks = " and ".join(str(each) for each in dict.fromkeys(plan["batches"]["ranks"] for plan in facts["plans"]))
    return f'<p class="kind">{text_of(titles)}, {ranks} rank{"s" * (ranks != "1")}</p>\n'


def _tiles(facts: Facts) -> str:
    coverage, lengths = facts["coverage"], facts["lengths"]
    tiles = [("records", f"{coverage['records']:,}"), ("on disk", sections.size(coverage["bytes"]))]
    if lengths is not None and lengths["unit"] == "tokens":
        tiles.append(("tokens", sections.rounded(lengths["total"])))
    for plan in facts["plans"][:1]:
        batches = plan["batches"]
        tiles.append(("steps an epoch", f"{batches['steps']:,}"))
        if "padding" in batches:
            tiles.append(("padding", percent(batches["padding"])))
        elif "fill" in batches:
            tiles.append(("filled", percent(batches["fill"])))
        if batches.get("cost"):
            tiles.append(("ranks wait", percent(batches["cost"]["waiting"])))
    found = "".join(f"<div><dt>{text_of(name)}</dt><dd>{_unit_small(value)}</dd></div>" for name, value in tiles)
    return f'<dl class="tiles">{found}</dl>'


def _unit_small(value: str) -> str:
    number, _, unit = value.rpartition(" ")
    return f"{text_of(number)} <small>{text_of(unit)}</small>" if number else text_of(unit)


def _verdicts(facts: Facts) -> str:
    items = "".join(
        f'<li><b class="{each.level}">{each.level}</b><span>{text_of(each.text)} '
        f'<a href="#{each.section}">{text_of(_TITLES[each.section])}</a></span></li>'
        for each in verdicts(facts)
    )
    return f'<ul class="verdicts">{items}</ul>'


def _footer(facts: Facts) -> str:
    made = f"mmapds {facts['mmapds']}; dataset {facts['fingerprint']}"
    return f"<footer>Made by {text_of(made)}. The same numbers as JSON: --json.</footer>"
