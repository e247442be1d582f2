"""The page of a report: one HTML file without a script, made of the facts by `report.html.j2`, and its verdicts."""

from collections.abc import Iterator
from importlib.resources import files
from itertools import count
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from ..bench import name_of
from ..errors import counted, printable
from . import pictures
from .gather import CURRENT
from .numbers import Facts

GOOD, FAIR, POOR, NOTE = "good", "fair", "poor", "note"
"""Grades of verdicts; a note is on what follows from the data, or from a choice of the user, and needs no repair."""

_ORDER = (POOR, FAIR, NOTE, GOOD)
_COLUMNS = 8  # fewer parts of an epoch do not tell clumps from chance


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
    environment.filters |= {"name_of": name_of, "total": lambda counts: number(sum(counts.values()))}
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


def percent(share: float) -> str:
    """Return a share in three digits; a share above 0 never looks like 0."""
    number = 100 * share
    if 0 < abs(number) < 0.005:
        return "under 0.01 %"
    digits = 0 if abs(number) >= 99.95 else 1 if abs(number) >= 9.995 else 2
    return f"{number:.{digits}f} %"


def rounded(value: int) -> str:
    """Return a large number for people: 1.3 billion."""
    for name, least in (("billion", 10**9), ("million", 10**6)):
        if value >= least:
            return f"{number(value / least)} {name}"
    return number(value)


# ---- verdicts


class Verdict(NamedTuple):
    """A sentence, the section of the page that shows more, and the grade."""

    level: str
    section: str
    text: str


def verdicts(facts: Facts, labels: list[str]) -> list[Verdict]:
    """Return the verdicts, worst ones first; those of several plans begin with the labels of these."""
    found = list(_of_data(facts))
    for label, plan in zip(labels, facts["plans"], strict=True):
        named = "" if len(labels) == 1 else f"{label[0].upper()}{label[1:]}: "
        of_plan = [*_of_batches(plan["batches"]), *_of_order(plan)]
        found += [each._replace(text=named + each.text) for each in of_plan]
    return sorted(found, key=lambda each: _ORDER.index(each.level))


def level(number: float, good: float, fair: float) -> str:
    """Return the grade of a number that should be small."""
    return GOOD if number <= good else FAIR if number <= fair else POOR


def _of_data(facts: Facts) -> Iterator[Verdict]:
    """Yield the verdicts on sources, samples and a training run."""
    coverage, samples, training = facts["coverage"], facts["samples"], facts["training"]
    if others := sum(count for state, count in coverage["states"].items() if state not in CURRENT):
        text = f"{others:,} of {counted(coverage['sources'], 'source')} changed or cannot be read; index them again."
        yield Verdict(POOR, "covers", text)
    else:
        yield Verdict(GOOD, "covers", "Every source is the same as when it was indexed.")
    if coverage["left_out"]:
        yield Verdict(FAIR, "covers", f"The index leaves {counted(coverage['left_out'], 'record')} out.")
    if samples:
        tried, is_bad = counted(samples["tried"], "sample"), bool(samples["undecodable"])
        text = f"Some of {tried} cannot be decoded." if is_bad else f"All of {tried} that were tried can be decoded."
        yield Verdict(POOR if is_bad else GOOD, "samples", text)
    if training:
        share = training["waiting"]
        text = f"The training run waited {percent(share)} of its time for data."
        yield Verdict(level(share, 0.02, 0.1), "training", text)


def _of_batches(facts: Facts) -> Iterator[Verdict]:
    if left_out := sum(facts["left_out"].values()):
        share = left_out / (left_out + facts["records"])
        what = " and ".join(f"{count:,} {why}" for why, count in facts["left_out"].items() if count)
        yield Verdict(level(share, 0.001, 0.02), "batches", f"{percent(share)} of the records are left out: {what}.")
    if facts["kind"] == "packs":
        yield Verdict(level(1 - facts["fill"], 0.02, 0.1), "batches", f"Packs are {percent(facts['fill'])} full.")
    elif "padding" in facts:
        grade, text = level(facts["padding"], 0.02, 0.1), f"{percent(facts['padding'])} of a batch is padding"
        if facts["kind"] == "budget":
            text += f"; random batches of this size have {percent(facts['random_padding'])}"
        elif grade != GOOD:
            text += "; a token budget or packs have less"
        yield Verdict(grade, "batches", f"{text}.")
    if facts.get("cost"):
        share = facts["cost"]["waiting"]
        text = f"Ranks wait {percent(share)} of the time for the slowest one, if time follows cost."
        yield Verdict(level(share, 0.02, 0.1), "batches", text)


def _of_order(plan: Facts) -> Iterator[Verdict]:
    """Yield the verdicts on shuffle and reads."""
    shuffle, chunk_size = plan["shuffle"], plan["options"]["chunk_size"]
    ratios = [each["distance"] / each["bound"] for each in shuffle["gaps"].values() if each["distance"] is not None]
    if ratios:
        grade = level(max(ratios), 1.5, 4)
        if shuffle["density"]["columns"] >= _COLUMNS:
            grade = min(grade, level(shuffle["density"]["dispersion"], 1.3, 3), key=_ORDER.index)
        text = f"Parts of the epoch are {'somewhat off' if grade == FAIR else 'far from'} a random choice."
        if grade == GOOD:
            text = "Every part of the epoch is as random as a shuffle of all records."
        elif chunk_size is not None:
            grade, text = NOTE, f"Chunks of {chunk_size:,} records mix less than a shuffle of all records."
        elif plan["batches"]["kind"] != "fixed":
            grade, text = NOTE, "Batches are planned by length, and lengths vary over the dataset."
        yield Verdict(grade, "shuffle", text)
    if plan["reads"]:
        ratio = plan["reads"]["amplification"]
        text = f"A step touches {ratio:.1f} times the bytes of its records. It matters if data do not fit into memory."
        yield Verdict(level(ratio, 2, 50), "reads", text)
