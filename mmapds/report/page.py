"""The page of a report: one HTML file without a script, by `report.html.j2`; its verdicts, and its charts as SVG."""

import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from importlib.resources import files
from itertools import count
from typing import Any, NamedTuple

import matplotlib.style
import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from ..bench import name_of
from ..errors import counted, printable
from .numbers import Facts

GOOD, FAIR, POOR, CHOICE, NOTE = "good", "fair", "poor", "choice", "note"
"""Grades of verdicts. A choice of the user, with its cost, and a note on what follows from data need no repair."""

_BATCHES = 0.02, 0.1  # shares of waits, padding and gaps in packs that are good, and fair
_FEW = 100  # steps
_COLUMNS = 8  # fewer parts of an epoch do not tell clumps from chance
_WIDTH, _HEIGHT = 330 / 72, 215 / 72  # inches: for a telephone; on wide screens the page makes the text smaller
_COLOURS = {name: f"#0a0a0{at}" for at, name in enumerate(("ink", "soft", "line", "one", "two", "three"))}
"""What matplotlib draws with, in the place of the variables of the page's style."""
_STYLE: dict[str, Any] = {
    **dict.fromkeys(("axes.labelcolor", "xtick.color", "ytick.color", "legend.labelcolor"), _COLOURS["soft"]),
    **dict.fromkeys(("axes.edgecolor", "grid.color"), _COLOURS["line"]),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "svg.fonttype"), "none"),
    **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
    "font.size": 12,
    "grid.linewidth": 0.6,
    "ytick.major.size": 0,
    "legend.handlelength": 1.4,
    "lines.linewidth": 1.8,
}
_FILLED: dict[str, Any] = {"fill": True, "color": _COLOURS["one"], "alpha": 0.6, "linewidth": 0}
_HEAT = "#2e86c1"  # visible on a light ground and on a dark one
_GROWING = 12  # from this ratio of the ends, an axis of lengths is logarithmic
_NOT_SHOWN = r'<metadata>.*?</metadata>|<style.*?</style>|(?<=<g)\sid="[^"]*"|font-family:[^;"]*;?\s*'
"""What the page has itself, or once for all charts."""


def page(facts: Facts, *, date: str = "", command: str = "mmapds report") -> str:
    """Return the page; the same arguments give the same bytes."""
    # Data may hold HTML, and characters that steer a page: all text is escaped here, by default.
    environment = Environment(
        autoescape=True,
        extensions=["jinja2.ext.do"],
        undefined=StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,  # HTML that is ready is a subclass
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"counted": counted, "number": number, "percent": percent}
    environment.filters |= {"name_of": name_of, "total": lambda counts: number(sum(counts.values()))}
    plans, charts = facts["plans"], count()
    differ = [name for name in ("mix_chunks", "ranks", "seed") if len({plan["options"][name] for plan in plans}) > 1]
    labels = [", ".join([plan["title"], *_shown(plan["options"], differ)]) for plan in plans]
    labels = [label.replace("_", " ") for label in labels]
    found = verdicts(facts, labels)
    draw = {each.__name__: each for each in (lengths, budgets, bars, costs, density, gaps)}

    def chart(kind: str, *numbers: Any) -> Markup:
        return Markup(svg(f"chart{next(charts)}", draw[kind], *numbers))

    def of_plans(form: str, *paths: str) -> list[str | None]:
        """Return numbers of each plan as a text, by a filter or a format; None where it does not have them."""
        write = environment.filters.get(form, form.format)
        rows = [
            [reduce(lambda at, name: at and at.get(name), path.split("."), plan) for path in paths] for plan in plans
        ]
        return [None if None in numbers else write(*numbers) for numbers in rows]

    template = files(__package__).joinpath("report.html.j2").read_text("utf-8")
    made = environment.from_string(template).render(
        facts=facts,
        made=" · ".join(filter(None, (date, command))),
        labels=labels,
        plans=[{**plan, "label": label} for label, plan in zip(labels, plans, strict=True)],
        findings=[each for each in found if each.level != GOOD],
        passed=[each for each in found if each.level == GOOD],
        chart=chart,
        of_plans=of_plans,
    )
    return made.lstrip() + "\n"  # the definitions before the page leave empty lines


def _shown(options: Facts, names: Iterable[str]) -> Iterator[str]:
    """Yield the options of a plan that have an effect, with their names."""
    for name in names:
        if name != "mix_chunks" or options["chunk_size"] is not None:
            yield f"{name} {options[name]}"


def number(value: float) -> str:
    """Return a number for a table: a whole one with its digits grouped, another in about three digits."""
    if float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"


def percent(share: float) -> str:
    """Return a share in three digits; a share above 0 never looks like 0."""
    shown = 100 * abs(share)
    if 0 < shown < 0.005:
        return "under 0.01 %"
    return f"{100 * share:.{0 if shown >= 99.95 else 1 if shown >= 9.995 else 2}f} %"


# ---- verdicts


class Verdict(NamedTuple):
    """A sentence, the section of the page that shows more, the grade, and the plan."""

    level: str
    section: str
    text: str
    plan: int = 0


def verdicts(facts: Facts, labels: list[str]) -> list[Verdict]:
    """Return the verdicts on data and plan, worst ones first, then those on compared plans, with their labels."""
    found = list(_of_data(facts["coverage"], facts["samples"], facts["training"]))
    for at, (label, plan) in enumerate(zip(labels, facts["plans"], strict=True)):
        named = "" if len(labels) == 1 else f"{label[0].upper()}{label[1:]}: "
        of_plan = [*_of_batches(plan), *_of_order(plan)]
        found += [each._replace(text=named + each.text, plan=at) for each in of_plan]
    return sorted(found, key=lambda each: (each.plan, _rank(each)))


def _rank(verdict: Verdict) -> int:
    return (POOR, FAIR, CHOICE, NOTE, GOOD).index(verdict.level)


def _small(number: float, good: float, fair: float, section: str, text: str, do: str = "") -> Verdict:
    """Return the verdict on a number that should be small, and what to do where it is not."""
    if number <= good:
        return Verdict(GOOD, section, text)
    return Verdict(FAIR if number <= fair else POOR, section, f"{text} Do: {do}." if do else text)


def _of_data(coverage: Facts, samples: Facts | None, training: Facts | None) -> Iterator[Verdict]:
    """Yield the verdicts on sources, samples and a training run."""
    text = "Every source is the same as when it was indexed."
    if others := coverage["changed"]:
        text = f"{others:,} of {counted(coverage['sources'], 'source')} changed or cannot be read; index them again."
    yield _small(others, 0, 0, "covers", text)
    if coverage["left_out"]:
        left_out = counted(coverage["left_out"], "record")
        yield Verdict(FAIR, "covers", f"The index leaves {left_out} out. Do: see why with mmapds info.")
    if samples:
        tried, bad = counted(samples["tried"], "sample"), len(samples["undecodable"])
        text = f"Some of {tried} cannot be decoded." if bad else f"All of {tried} that were tried can be decoded."
        yield _small(bad, 0, 0, "samples", text, "mend these records, or open with on_error='skip'")
    if training:
        share = training["waiting"]
        text = f"The training run waited {percent(share)} of its time for data."
        yield _small(share, 0.02, 0.1, "training", text, "choose workers with mmapds bench")


def _of_batches(plan: Facts) -> Iterator[Verdict]:
    facts, has_chunks = plan["batches"], plan["options"]["chunk_size"] is not None
    limit = "pack" if facts["kind"] == "packs" else "budget"
    waiting = facts["cost"]["waiting"] if facts.get("cost") else 0.0
    unused = 1 - facts["fill"] if facts["kind"] == "packs" else facts.get("padding", 0.0)
    pad_less, wait_less = _ways(facts, has_chunks)
    if facts["kind"] != "fixed" and min(waiting, unused) > _BATCHES[0]:  # a smaller limit mends one, a larger the other
        pad_less = wait_less = f"compare other {limit}s{', larger chunks or none' * has_chunks}"
    if plan["mixture"] and facts["kind"] != "fixed":
        wait_less = f"give MixtureBatchSampler group_size={facts['ranks']}, so that a step is of one dataset"
    few = ""
    if facts["kind"] != "fixed" and facts["steps"] < _FEW:
        few = f"; an epoch of {counted(facts['steps'], 'step')} may allow no better"
    if left_out := sum(facts["left_out"].values()):
        share = left_out / (left_out + facts["records"])
        what = " and ".join(f"{count:,} {why}" for why, count in facts["left_out"].items() if count)
        text = f"{percent(share)} of the records are left out: {what}."
        yield _small(share, 0.001, 0.02, "batches", text, f"choose a larger {limit}, or cut long records")
    if facts["kind"] == "packs":
        yield _small(unused, *_BATCHES, "batches", f"Packs are {percent(facts['fill'])} full.", pad_less + few)
    elif "padding" in facts:
        others = f"random batches with as many records have {percent(facts['random_padding'])}"
        text = f"{percent(facts['padding'])} of a batch is padding; {others}."
        yield _small(unused, *_BATCHES, "batches", text, pad_less + few)
        if facts.get("fill", 1) < 0.9:
            text = f"Batches hold {percent(facts['fill'])} of the budget; padding and ends too short for a record take"
            yield Verdict(NOTE, "batches", f"{text} the rest. Another budget may hold more.")
    if facts.get("cost"):
        text = f"Ranks wait {percent(waiting)} of the time for the slowest one, if time follows cost."
        yield _small(waiting, *_BATCHES, "batches", text, wait_less + few)


def _ways(facts: Facts, has_chunks: bool) -> tuple[str, str]:
    """Return what lessens padding or room in packs, and what lessens waits of ranks."""
    if facts["kind"] == "fixed":
        return "use a token budget", "use a token budget"
    if facts["kind"] == "packs":
        leaves_out = ", though they leave out more records" * bool(sum(facts["left_out"].values()))
        fuller = "larger chunks or none" if has_chunks else "a longer pack"
        return f"choose {fuller}", f"choose shorter packs{leaves_out}{', or no chunks' * has_chunks}"
    # Padding is about proportional to the budget, which must hold the longest record.
    wanted = int(facts["limit"] * 0.02 / max(facts.get("padding", 0), 0.02))
    smaller = max(1 << max(wanted, 1).bit_length() - 1, 1 << (facts["longest"] - 1).bit_length())
    less = f"choose a smaller budget, {smaller:,}" if smaller < facts["limit"] else "cut long records"
    return less, f"choose a larger budget{', or no chunks' * has_chunks}"


def _of_order(plan: Facts) -> Iterator[Verdict]:
    """Yield the verdicts on shuffle and reads."""
    density, chunk_size, chunks = plan["shuffle"]["density"], plan["options"]["chunk_size"], plan["shuffle"]["chunks"]
    uneven = density["dispersion"] / max(density["expected"], 1)
    is_planned, mix = plan["batches"]["kind"] != "fixed", plan["options"]["mix_chunks"]
    gaps = [each for each in plan["shuffle"]["gaps"].values() if each["distance"] is not None]
    reads = plan["reads"]
    if gaps:
        text = "Every part of the epoch is as random as a shuffle of all records."
        found = _small(max(each["distance"] / each["bound"] for each in gaps), 1.5, 4, "shuffle", text)
        if density["columns"] >= _COLUMNS:
            found = min(found, _small(uneven, 1.3, 3, "shuffle", text), key=_rank)
        if found.level == GOOD:
            yield found
        elif chunks is not None and mix < chunks and (uneven > 1.3 or not is_planned):
            cost = "neighbours are often read together"
            if density["columns"] >= _COLUMNS and uneven >= 2:
                cost = f"an epoch mixes records {number(uneven)} times as unevenly as without chunks"
            what, do = "Compressed sources are read in chunks of blocks", "choose a larger mix_chunks to mix more"
            if chunk_size != "block":
                what = f"You chose chunks of {counted(chunk_size, 'record')}"
                do, reads = do + ", or a smaller one to read fewer pages" * (not is_planned), None
            how = f"{counted(chunks, 'chunk')}, {mix:,} mixed at a time"
            yield Verdict(CHOICE, "shuffle", f"{what}: {how}. The cost: {cost}. Do: {do}.")
        elif is_planned:
            text = "Batches are planned by length, so samples of equal length stay together."
            yield Verdict(NOTE, "shuffle", text)
        else:
            yield found._replace(text="Parts of the epoch are far from a random choice. Do: try another seed.")
    if reads:
        text = f"A step touches {reads['amplification']:.1f} times the bytes of its records."
        found = _small(reads["amplification"], 2, 50, "reads", text, "shuffle in chunks")
        if found.level != GOOD and reads["fits"]:
            text += " The data fit into memory here, so only the first epoch reads the disk."
            found = Verdict(NOTE, "reads", text)
        yield found


# ---- charts


def svg(name: str, draw: Callable[..., None], *numbers: Any) -> str:
    """Return a chart as an SVG element; its name keeps the ids of a page apart."""
    with matplotlib.style.context(["default", {**_STYLE, "svg.hashsalt": name}]):
        figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        axes = figure.add_subplot()
        draw(axes, *numbers)
        if axes.get_legend_handles_labels()[0] and axes.get_legend() is None:
            # Above the chart, where it covers nothing.
            axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, borderaxespad=0.2)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = re.sub(_NOT_SHOWN, "", out.getvalue(), flags=re.DOTALL)
    text = text[text.index("<svg") :]
    for colour, code in _COLOURS.items():
        text = text.replace(code, f"var(--{colour})")
    text = re.sub(r'\s(width|height)="[^"]*"', "", text, count=2)  # of the chart, which fills its figure
    return re.sub(r"\s*\n\s*", " ", re.sub(r">\s+<", "><", text)).strip()


def lengths(axes: Any, histogram: Facts, unit: str) -> None:
    """Draw how records, and the tokens in them, are distributed over lengths."""
    labels = (histogram["edges"], f"length of a record, {unit}", "all")
    bars(axes, histogram["records"], *labels, **_FILLED, label="records")
    line: Any = {"baseline": None, "color": _COLOURS["two"], "linewidth": 1.8}
    bars(axes, histogram["share_of_total"], *labels, label=unit, **line)


def budgets(axes: Any, curve: Sequence[Facts], chosen: Sequence[int], unit: str) -> None:
    """Draw what is lost at each largest length, by dropping longer records or by cutting them."""
    limits = np.array([each["budget"] for each in curve], np.float64)
    dropped, cut = ([100 * each[name] for each in curve] for name in ("dropped_share", "truncated_share"))
    axes.plot(limits, dropped, color=_COLOURS["one"], label="longer ones dropped")
    axes.plot(limits, cut, "--", color=_COLOURS["two"], label="cut")
    for limit in chosen:
        axes.axvline(limit, color=_COLOURS["ink"], linewidth=1)
    _label_lengths(axes, limits, is_log=limits[-1] > _GROWING * limits[0])
    axes.set(xlabel=f"longest record allowed, {unit}", ylabel=f"% of all {unit} lost", ylim=(0, 102))


def bars(axes: Any, counts: Sequence[float], edges: Sequence[int], across: str, whole: str, **style: Any) -> None:
    """Draw a histogram, on a logarithmic axis where bins grow. A wide bar is lower, so that its area is its share.

    Without a style it stands alone, and its axis ends with the bars that are high enough to be seen.
    """
    heights = 100 * np.array(counts, np.float64) / max(sum(counts), 1)
    is_log = len(edges) > 2 and edges[-2] > _GROWING * max(edges[1], 1)
    bounds = np.maximum(np.array(edges, np.float64), 0.7 if is_log else 0)
    widths = np.diff(np.log2(bounds)) if is_log else np.diff(bounds)
    widths[widths == 0] = 1  # float64 rounds neighbours of large numbers to one
    heights /= widths / widths.min()
    if not style:
        seen = np.flatnonzero(heights >= heights.max() / 200)  # a pixel
        heights, bounds = heights[seen[0] : seen[-1] + 1], bounds[seen[0] : seen[-1] + 2]
    axes.stairs(heights, bounds, **(style or _FILLED))
    _label_lengths(axes, bounds, is_log=is_log)
    if len(edges) == 2:
        axes.set_xticks([bounds.mean()], [f"{edges[0]:,}"])  # in the middle, clear of the other axis
    axes.set(xlabel=across, ylabel=f"% of {whole}{', by area' * is_log}")


def costs(axes: Any, strip: Sequence[Sequence[float]], of_plans: Sequence[Sequence[Sequence[float]]]) -> None:
    """Draw the cost of each rank in some steps, where the mean of each step is 1. All plans have the same scale."""
    found, every = np.array(strip), np.concatenate([np.ravel(each) for each in of_plans])
    steps = np.linspace(0, 100, len(found))
    axes.vlines(steps, found.min(axis=1), found.max(axis=1), color=_COLOURS["line"], linewidth=3)
    axes.scatter(np.repeat(steps, found.shape[1]), found.ravel(), s=9, color=_COLOURS["one"], alpha=0.55, lw=0)
    axes.scatter(steps, found.max(axis=1), s=14, color=_COLOURS["two"], lw=0, label="the slowest rank")
    axes.axhline(1, color=_COLOURS["ink"], linewidth=0.8)
    axes.set(xticks=[0, 50, 100], xlabel="position in the epoch, %", ylabel="cost, mean of step = 1")
    if (room := 0.05 * np.ptp(every)) > 0:
        axes.set_ylim(every.min() - room, every.max() + room)


def density(axes: Any, cells: Sequence[Sequence[float]]) -> None:
    """Draw which part of the dataset each part of the epoch has its records from."""
    shares = np.array(cells).T
    strength = np.clip(shares / max(float(np.quantile(shares, 0.995)), 2.0), 0, 1)
    where: Any = {"aspect": "auto", "origin": "lower", "extent": (0, 100, 0, 100), "interpolation": "nearest"}
    axes.imshow(np.ones_like(strength), cmap=ListedColormap([_HEAT]), alpha=strength, **where)
    axes.grid(False)
    axes.set(xlabel="position in the epoch, %", ylabel="position in the dataset, %")
    axes.set(xticks=[0, 50, 100], yticks=[0, 50, 100])


def gaps(axes: Any, found: dict[str, Facts]) -> None:
    """Draw the gaps between records that are read at about one time, beside those of a random order."""
    ideal = np.linspace(0, 6, 61)
    axes.plot(ideal, 100 * np.exp(-ideal), color=_COLOURS["ink"], linewidth=4, alpha=0.25, label="random")
    for (name, each), colour, dash in zip(found.items(), ("one", "two", "three"), ("-", "--", ":"), strict=True):
        if points := [(x, 100 * y) for x, y in each["curve"] if y > 0]:
            axes.plot(*zip(*points, strict=True), dash, color=_COLOURS[colour], label=name)
    axes.set(xlim=(0, 6), xlabel="gap to the next record, mean = 1", ylabel="% of longer gaps")
    axes.set(yscale="log", ylim=(0.2, 130), yticks=[1, 10, 100], yticklabels=["1", "10", "100"])
    axes.minorticks_off()


def _label_lengths(axes: Any, bounds: Any, *, is_log: bool) -> None:
    """Label the axis of lengths: with powers of two where it is logarithmic, otherwise with round numbers."""

    def short(value: float, _: int) -> str:
        """Return a power of two as 512, 4k, 1M."""
        thousands = min(max(round(math.log2(value)), 0) // 10, 6)
        return f"{value / 1024**thousands:.0f}{' kMGTPE'[thousands].strip()}"

    if is_log:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(LogLocator(base=2, numticks=7))
        axes.minorticks_off()
    else:
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(short if is_log else lambda value, _: f"{value:,.0f}"))
    if bounds[0] < bounds[-1]:
        axes.set_xlim(bounds[0], bounds[-1])
