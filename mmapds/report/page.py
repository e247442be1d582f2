"""The page of a report: one HTML file without a script, made of the facts by `report.html.j2`."""

from importlib.resources import files
from itertools import count
from typing import Any

from jinja2 import Environment, StrictUndefined
from jinja2.filters import do_filesizeformat as in_bytes
from markupsafe import Markup

from ..bench import name_of
from ..errors import counted, printable
from . import pictures
from .numbers import Facts
from .verdicts import GOOD, percent, verdicts


def page(facts: Facts) -> str:
    """Return the page; the same facts give the same bytes."""
    # Data may hold HTML, and characters that steer a page: all text is escaped here, by default.
    environment = Environment(
        autoescape=True,
        extensions=["jinja2.ext.do"],
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"counted": counted, "number": number, "percent": percent, "rounded": rounded}
    environment.filters |= {
        "in_bytes": in_bytes,
        "name_of": name_of,
        "total": lambda counts: number(sum(counts.values())),
    }
    plans, labels, charts = facts["plans"], _labels(facts["plans"]), count()
    found = verdicts(facts, labels)

    def chart(kind: str, *numbers: Any) -> Markup:
        return Markup(pictures.svg(f"chart{next(charts)}", getattr(pictures, kind), *numbers))

    def of_plans(form: str, *paths: str) -> list[str | None]:
        """Return numbers of each plan as a text, by a filter or a format; None where it does not have them."""
        write = environment.filters.get(form, form.format)
        found = [[_at(plan, path) for path in paths] for plan in plans]
        return [None if None in numbers else write(*numbers) for numbers in found]

    template = files(__package__).joinpath("report.html.j2").read_text("utf-8")
    made = environment.from_string(template).render(
        facts=facts,
        labels=labels,
        plans=[{**plan, "label": label} for label, plan in zip(labels, plans, strict=True)],
        findings=[each for each in found if each.level != GOOD],
        passed=[each for each in found if each.level == GOOD],
        chart=chart,
        of_plans=of_plans,
    )
    return made.lstrip() + "\n"  # the definitions before the page leave empty lines


def _printable(value: Any) -> Any:
    return printable(value) if type(value) is str else value  # HTML that is ready is a subclass


def _labels(plans: list[Facts]) -> list[str]:
    """Return the names of plans, with the options in which plans of one name may differ."""
    options = [plan["options"] for plan in plans]
    ranks, seeds = (len({each[name] for each in options}) > 1 for name in ("ranks", "seed"))
    return [
        plan["title"] + f", {counted(each['ranks'], 'rank')}" * ranks + f", seed {each['seed']}" * seeds
        for plan, each in zip(plans, options, strict=True)
    ]


def _at(facts: Facts, path: str) -> Any:
    """Return what stands at a path, as in `batches.cost.waiting`; None where nothing does."""
    found: Any = facts
    for name in path.split("."):
        found = found.get(name) if found else None
    return found


def number(value: float) -> str:
    """Return a number for a table: a whole one with its digits grouped, another in about three digits."""
    if float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"


def rounded(value: int) -> str:
    """Return a large number for people: 1.3 billion."""
    for name, least in (("billion", 10**9), ("million", 10**6)):
        if value >= least:
            return f"{number(value / least)} {name}"
    return number(value)
