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

_QUANTILES = ("min", "10 %", "median", "90 %", "99 %", "max", "mean")


def page(facts: Facts) -> str:
    """Return the page; the same facts give the same bytes."""
    # Data may hold HTML, and characters that steer a page: all text is escaped here, by default.
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=_printable, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"counted": counted, "number": number, "percent": percent, "rounded": rounded}
    labels, charts = _labels(facts["plans"]), count()
    found = verdicts(facts, labels)

    def chart(kind: str, *numbers: Any) -> Markup:
        return Markup(pictures.svg(f"chart{next(charts)}", getattr(pictures, kind), *numbers))

    template = files(__package__).joinpath("report.html.j2").read_text("utf-8")
    made = environment.from_string(template).render(
        facts=facts,
        labels=labels,
        plans=[{**plan, "label": label} for label, plan in zip(labels, facts["plans"], strict=True)],
        beside=_beside(facts["plans"]),
        tables=_tables(facts),
        findings=[each for each in found if each.level != GOOD],
        passed=[each for each in found if each.level == GOOD],
        chart=chart,
    )
    return made.lstrip() + "\n"  # the definitions before the page leave empty lines


def _printable(value: Any) -> Any:
    return printable(value) if type(value) is str else value  # HTML that is ready is a subclass


def _labels(plans: list[Facts]) -> list[str]:
    """Return the names of plans, with the options in which plans of one name may differ."""
    options, labels = [plan["options"] for plan in plans], [plan["title"] for plan in plans]
    if len({each["ranks"] for each in options}) > 1:
        labels = [f"{label}, {counted(each['ranks'], 'rank')}" for label, each in zip(labels, options, strict=True)]
    if len({each["seed"] for each in options}) > 1:
        labels = [f"{label}, seed {each['seed']}" for label, each in zip(labels, options, strict=True)]
    return labels


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


def _beside(plans: list[Facts]) -> dict[str, dict[str, list[str | None]]]:
    """Return the numbers of all plans, by section and by name; those that no plan has are left out."""
    found = [_numbers_of(plan) for plan in plans]
    return {
        section: {
            name: [plan[section][name] for plan in found]
            for name in (found[0][section] if found else ())
            if any(plan[section][name] for plan in found)
        }
        for section in ("batches", "shuffle", "reads")
    }


def _numbers_of(plan: Facts) -> dict[str, dict[str, str | None]]:
    """Return the numbers of a plan as texts, by section and by name; None for those that it does not have."""
    batches, shuffle, reads = plan["batches"], plan["shuffle"], plan["reads"]
    sizes, cost = batches["sizes"]["quantiles"], batches.get("cost")
    shares = {name: percent(batches[name]) for name in ("padding", "random_padding", "fill") if name in batches}
    of_batches = {
        "ranks": number(batches["ranks"]),
        "steps an epoch": number(batches["steps"]),
        "batches, all ranks": number(batches["batches"]),
        "records": number(batches["records"]),
        "records left out": number(sum(batches["left_out"].values())),
        "records in a batch, mean": number(sizes["mean"]),
        "fewest to most": f"{number(sizes['min'])} to {number(sizes['max'])}",
        "padding": shares.get("padding"),
        "padding of random batches": shares.get("random_padding"),
        "filled": shares.get("fill"),
        "slowest rank, mean = 1": cost and f"{cost['imbalance']['mean']:.4f}",
        "slowest rank, worst step": cost and f"{cost['imbalance']['max']:.4f}",
        "ranks wait": cost and percent(cost["waiting"]),
    }
    of_shuffle = {
        f"distance to random, {name}": gap["distance"] and f"{gap['distance']:.3f} ({gap['bound']:.3f})"
        for name, gap in shuffle["gaps"].items()
    }
    of_shuffle["dispersion, random = 1"] = f"{shuffle['density']['dispersion']:.3g}"
    of_shuffle["jump, random = 33.3 %"] = shuffle["jump"] and percent(shuffle["jump"])
    of_reads = reads and {
        "records in a step, all ranks": number(reads["mean"]["records"]),
        "their size": in_bytes(reads["mean"]["bytes"]),
        "pages in a step": number(round(reads["mean"]["pages"])),
        "pages for a record": f"{reads['pages_of_a_record']:.2f}",
        "bytes of pages, records = 1": f"{reads['amplification']:.1f}",
        "sources in a step": f"{number(reads['mean']['sources'])} of {number(reads['sources'])}",
        "bytes of an epoch": in_bytes(reads["epoch_bytes"]),
    }
    return {"batches": of_batches, "shuffle": of_shuffle, "reads": of_reads or {}}


def _tables(facts: Facts) -> dict[str, list[list[str]]]:
    """Return the rows of the tables that show facts one by one; the first cell of a row names it."""
    coverage, lengths = facts["coverage"], facts["lengths"] or {"budgets": []}
    loader, training = facts["loader"] or {"ways": []}, facts["training"] or {"ranks": []}
    return {
        "sources": [
            [each["path"], each.get("message", "current"), number(each["records"]), in_bytes(each["bytes"])]
            for each in coverage["listed"]
        ],
        "columns": [
            [each["name"], each["type"], each["of"], *(number(each[name]) for name in _QUANTILES)]
            for each in coverage["columns"]
        ],
        "budgets": [
            [number(each["budget"]), number(each["over"])]
            + [percent(each[f"{name}_share"]) for name in ("over", "dropped", "truncated")]
            for each in lengths["budgets"]
        ],
        "loader": [
            [name_of(way), which, number(round(found["records_per_second"]))]
            + [f"{found[name] * 1000:.3f}" for name in ("wait_p50", "wait_p99")]
            + [found["memory"] and in_bytes(found["memory"])]
            for way in loader["ways"]
            for which in ("cold", "warm")
            if (found := way[which])
        ],
        "training": [
            [number(each["rank"]), percent(each["waiting"]), number(each["batches"]), f"{each['seconds']:.1f}"]
            + [f"{each[name] * 1000:.2f}" for name in ("wait_p50", "wait_p99")]
            + [f"{each['wait_max']:.2f}", number(each["stalls"])]
            for each in training["ranks"]
        ],
    }
