"""The page of a report: one HTML file without a script, made of the facts by `report.html.j2`."""

from importlib.resources import files
from itertools import count
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from ..bench.choose import name_of
from ..errors import counted, printable
from . import pictures
from .epochs import PAGE
from .gather import CURRENT
from .lengths import Facts
from .verdicts import GOOD, percent, verdicts


def page(facts: Facts) -> str:
    """Return the page; the same facts give the same bytes."""
    # Data may hold HTML, and characters that steer a page: all text is escaped here, by default.
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=_printable, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"counted": counted, "number": number, "percent": percent, "rounded": rounded}
    labels = _labels(facts["plans"])
    found, numbers = verdicts(facts, labels), count()
    template = files(__package__).joinpath("report.html.j2").read_text("utf-8")
    made = environment.from_string(template).render(
        facts=facts,
        plans=[{**plan, "label": label} for label, plan in zip(labels, facts["plans"], strict=True)],
        findings=[each for each in found if each.level != GOOD],
        passed=[each for each in found if each.level == GOOD],
        draw=pictures,
        svg=lambda drawing: Markup(pictures.svg(f"chart{next(numbers)}", drawing)),
        current=CURRENT,
        page_size=PAGE,
        name_of=name_of,
    )
    return made.lstrip() + "\n"  # the definitions before the page leave empty lines


def _printable(value: Any) -> Any:
    return printable(value) if type(value) is str else value  # HTML that is ready is a subclass


def _labels(plans: list[Facts]) -> list[str]:
    """Return the names of plans, with the options in which plans of one name may differ."""
    labels = []
    differing = [name for name in ("ranks", "seed") if len({plan["options"][name] for plan in plans}) > 1]
    for plan in plans:
        ranks, seed = counted(plan["options"]["ranks"], "rank"), f"seed {plan['options']['seed']}"
        more = [text for name, text in (("ranks", ranks), ("seed", seed)) if name in differing]
        labels.append(", ".join([plan["title"], *more]))
    return labels


def rounded(number: float) -> str:
    """Return a large number for people: 1.3 billion."""
    for name, least in (("trillion", 10**12), ("billion", 10**9), ("million", 10**6)):
        if number >= least:
            return f"{number / least:,.1f} {name}"
    return f"{number:,.0f}"


def number(value: float) -> str:
    """Return a number for a table: a whole one with its digits grouped, another in about three digits."""
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"
