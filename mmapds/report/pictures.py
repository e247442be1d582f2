"""Charts as SVG, by matplotlib, in the colours and the font of the page. The same numbers give the same bytes.

A chart is laid out for a telephone, 330 units wide with text of 12 units. On wide screens the page makes the text
smaller in proportion, so that it is about as large as the text around it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from .lengths import Facts

_WIDTH, _HEIGHT = 330 / 72, 215 / 72  # inches
_COLOURS = {name: f"#0a0a0{at}" for at, name in enumerate(("ink", "soft", "line", "one", "two", "three"))}
"""What matplotlib draws with, in the place of the variables of the page's style."""

_STYLE = {
    "svg.fonttype": "none",
    "font.size": 12,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.edgecolor": _COLOURS["line"],
    "axes.labelcolor": _COLOURS["soft"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _COLOURS["line"],
    "grid.linewidth": 0.6,
    "xtick.color": _COLOURS["soft"],
    "ytick.color": _COLOURS["soft"],
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.labelcolor": _COLOURS["soft"],
    "legend.handlelength": 1.4,
    "lines.linewidth": 1.8,
}
_HEAT = (46, 134, 193)  # visible on a light ground and on a dark one
_GROWING = 12  # from this ratio of the ends, an axis of lengths is logarithmic
_DENSITY = "% per doubling"

Draw = Callable[[Any], None]
"""Draws on the axes that it is given."""


def svg(name: str, draw: Draw) -> str:
    """Return a chart as an SVG element.

    Args:
      name: another one for each chart of a page, so that ids differ.
    """
    with matplotlib.style.context(["default", {**_STYLE, "svg.hashsalt": name}]):
        figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        if (
            axes.get_legend_handles_labels()[0] and axes.get_legend() is None
        ):  # above the chart, where it covers nothing
            axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, borderaxespad=0.2)
        out = io.StringIO()
        FigureCanvasSVG(figure)  # needs no display, whatever backend the user has chosen
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", out.getvalue(), flags=re.DOTALL)
    text = text[text.index("<svg") :]
    for colour, code in _COLOURS.items():
        text = text.replace(code, f"var(--{colour})")
    text = re.sub(r'<g id="[^"]*"', "<g", text)  # the same in every chart; other ids are hashes
    text = re.sub(r"font-family:[^;\"]*;?\s*", "", text)
    text = re.sub(r'\s(width|height)="[^"]*"', "", text, count=2)  # of the chart, which fills its figure
    return re.sub(r"\s*\n\s*", " ", re.sub(r">\s+<", "><", text)).strip()


def lengths(histogram: Facts, unit: str) -> Draw:
    """Draw how records, and the tokens in them, are distributed over lengths."""
    records = np.array(histogram["records"], np.float64)

    def draw(axes: Any) -> None:
        whole = f"records or {unit}"
        heights, bounds, what = _bars(histogram["edges"], records / max(records.sum(), 1), whole)
        axes.stairs(heights, bounds, fill=True, color=_COLOURS["one"], alpha=0.55, linewidth=0, label="records")
        heights, bounds, _ = _bars(histogram["edges"], histogram["share_of_total"], whole)
        axes.stairs(heights, bounds, baseline=None, color=_COLOURS["two"], linewidth=1.8, label=unit)
        _label_lengths(axes, bounds, what)
        axes.set_xlabel(f"length of a record, {unit}")
        axes.set_ylabel(what)

    return draw


def budgets(curve: Sequence[Facts], chosen: Sequence[int], unit: str) -> Draw:
    """Draw what is lost at each largest length, by dropping longer records or by cutting them."""
    limits = np.array([each["budget"] for each in curve], np.float64)
    is_log = limits[-1] > _GROWING * limits[0]
    places = np.log2(limits) if is_log else limits

    def draw(axes: Any) -> None:
        for key, colour, dash, label in (
            ("dropped_share", "one", "-", "longer ones dropped"),
            ("truncated_share", "two", "--", "cut"),
        ):
            axes.plot(places, [100 * each[key] for each in curve], dash, color=_COLOURS[colour], label=label)
        for limit in chosen:
            if limits[0] <= limit <= limits[-1]:
                axes.axvline(np.log2(limit) if is_log else limit, color=_COLOURS["ink"], linewidth=1)
        _label_lengths(axes, places, _DENSITY if is_log else "")
        axes.set_xlabel(f"longest record allowed, {unit}")
        axes.set_ylabel(f"% of all {unit} lost")
        axes.set_ylim(0, 102)

    return draw


def batches(numbers: Facts, what: str, whole: str) -> Draw:
    """Draw how a number of each batch is distributed."""
    found = np.array(numbers["batches"], np.float64)

    def draw(axes: Any) -> None:
        heights, bounds, label = _bars(numbers["edges"], found / max(found.sum(), 1), whole)
        axes.stairs(heights, bounds, fill=True, color=_COLOURS["one"], alpha=0.75, linewidth=0)
        _label_lengths(axes, bounds, label)
        axes.set_xlabel(what)
        axes.set_ylabel(label)
        if len(bounds) == 2:
            axes.set_xticks([bounds.mean()], [f"{numbers['edges'][0]:,}"])

    return draw


def costs(strip: Sequence[Sequence[float]]) -> Draw:
    """Draw the cost of each rank in some steps, where the mean of each step is 1."""
    found = np.array(strip)

    def draw(axes: Any) -> None:
        steps = _parts_of_an_epoch(axes, len(found))
        axes.vlines(steps, found.min(axis=1), found.max(axis=1), color=_COLOURS["line"], linewidth=3)
        axes.scatter(np.repeat(steps, found.shape[1]), found.ravel(), s=9, color=_COLOURS["one"], alpha=0.55, lw=0)
        axes.scatter(steps, found.max(axis=1), s=14, color=_COLOURS["two"], lw=0, label="the slowest rank")
        axes.axhline(1, color=_COLOURS["ink"], linewidth=0.8)
        far = max(float(np.abs(found - 1).max()) * 1.15, 0.05)
        axes.set_ylim(max(1 - far, 0), 1 + far)
        axes.set_ylabel("cost, mean of step = 1")

    return draw


def density(cells: Sequence[Sequence[float]]) -> Draw:
    """Draw which part of the dataset each part of the epoch has its records from."""
    shares = np.array(cells).T
    strength = np.clip(shares / max(float(np.quantile(shares, 0.995)), 2.0), 0, 1)
    pixels = np.zeros((*strength.shape, 4), np.uint8)
    pixels[..., :3] = _HEAT
    pixels[..., 3] = (strength * 255).round()

    def draw(axes: Any) -> None:
        axes.imshow(pixels, aspect="auto", origin="lower", extent=(0, 100, 0, 100), interpolation="nearest")
        axes.grid(False)
        axes.set_xticks([0, 50, 100])
        axes.set_yticks([0, 50, 100])
        axes.set_xlabel("position in the epoch, %")
        axes.set_ylabel("position in the dataset, %")

    return draw


def gaps(found: dict[str, Facts]) -> Draw:
    """Draw the gaps between records that are read at about one time, beside those of a random order."""

    def draw(axes: Any) -> None:
        ideal = np.linspace(0, 6, 61)
        axes.plot(ideal, 100 * np.exp(-ideal), color=_COLOURS["ink"], linewidth=4, alpha=0.25, label="random")
        for (name, each), colour, dash in zip(found.items(), ("one", "two", "three"), ("-", "--", ":"), strict=False):
            points = [(x, 100 * y) for x, y in each["curve"] if y > 0]
            if points:
                axes.plot(*zip(*points, strict=True), dash, color=_COLOURS[colour], label=name)
        axes.set_yscale("log")
        axes.set_ylim(0.2, 130)
        axes.set_yticks([1, 10, 100], ["1", "10", "100"])
        axes.minorticks_off()
        axes.set_xlim(0, 6)
        axes.set_xlabel("gap to the next record, mean = 1")
        axes.set_ylabel("% of gaps that are longer")

    return draw


def reads(steps: Sequence[dict[str, int]], page: int) -> Draw:
    """Draw the bytes of the records of some steps, and of the pages that they lie on."""
    wanted = np.array([each["bytes"] for each in steps], np.float64) / 1e6
    touched = np.array([each["pages"] * page for each in steps], np.float64) / 1e6

    def draw(axes: Any) -> None:
        at = _parts_of_an_epoch(axes, len(steps))
        width = 82 / max(len(steps) - 1, 1)
        axes.bar(at, touched, width, color=_COLOURS["line"], linewidth=0, label="pages")
        axes.bar(at, wanted, width, color=_COLOURS["one"], linewidth=0, label="records")
        axes.set_ylim(0, float(touched.max()) * 1.05 or 1)
        axes.set_ylabel("MB in a step")

    return draw


def loaders(names: Sequence[str], ways: Sequence[Facts]) -> Draw:
    """Draw how long a trainer waits for loaders: the median and the 99th percentile, cold and warm."""

    def draw(axes: Any) -> None:
        for which, colour, shift in (("cold", "two", -0.13), ("warm", "one", 0.13)):
            found = [(at + shift, way[which]) for at, way in enumerate(ways) if way[which] is not None]
            places = [at for at, _ in found]
            low, high = ([max(each[name] * 1e3, 1e-4) for _, each in found] for name in ("wait_p50", "wait_p99"))
            axes.hlines(places, low, high, color=_COLOURS[colour], linewidth=2.5, alpha=0.55)
            axes.scatter(low, places, s=26, color=_COLOURS[colour], linewidth=0, label=which)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_ylim(len(ways) - 0.4, -0.6)
        axes.set_yticks(range(len(ways)), names)
        axes.set_xlabel("wait for a batch, ms")

    return draw


def ranks(shares: Sequence[float]) -> Draw:
    """Draw the share of its time that each rank waited."""

    def draw(axes: Any) -> None:
        axes.bar(range(len(shares)), [100 * share for share in shares], 0.8, color=_COLOURS["one"], linewidth=0)
        axes.set_ylim(0, max(100 * max(shares), 2) * 1.1)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set_xlabel("rank")
        axes.set_ylabel("% of its time")

    return draw


def _parts_of_an_epoch(axes: Any, count: int) -> Any:
    """Label the axis of an epoch; return where `count` evenly spread steps stand on it."""
    margin = 60 / max(count, 2)
    axes.set_xlim(-margin, 100 + margin)
    axes.set_xticks([0, 50, 100])
    axes.set_xlabel("position in the epoch, %")
    return np.linspace(0, 100, count) if count > 1 else np.array([50.0])


def _bars(edges: Sequence[int], shares: Any, whole: str) -> tuple[Any, Any, str]:
    """Return the heights of bars, their bounds on the axis, and what a height is, for the axis.

    A wide bar is as much lower, so that its area is its share. Where bins grow, the axis is logarithmic, and a height
    is the share of a doubling. Otherwise it is the share of the narrowest bar.
    """
    bounds, heights = np.array(edges, np.float64), 100 * np.array(shares, np.float64)
    is_log = len(edges) > 2 and edges[-2] > _GROWING * max(edges[1], 1)
    bounds = np.log2(np.maximum(bounds, 0.7)) if is_log else bounds
    bounds, begins = np.unique(bounds, return_index=True)  # float64 rounds neighbours of large numbers to one
    if len(bounds) == 1:
        return np.array([heights.sum()]), np.array([bounds[0], np.nextafter(bounds[0], np.inf)]), f"% of {whole}"
    heights = np.add.reduceat(heights, begins[:-1])
    widths = np.diff(bounds)
    if is_log:
        return heights / widths, bounds, _DENSITY
    return heights * widths.min() / widths, bounds, f"% of {whole}"


def _label_lengths(axes: Any, bounds: Any, what: str) -> None:
    """Label the axis of lengths: with powers of two where it is logarithmic, otherwise with round numbers."""
    low, high = float(bounds[0]), float(bounds[-1])
    if low < high:
        axes.set_xlim(low, high)
    if what == _DENSITY:
        powers = [power for power in range(65) if low <= power <= high]
        shown = powers[:: max(-(-len(powers) // 6), 1)]
        axes.set_xticks(shown, [_short(2**power) for power in shown])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _short(number: int) -> str:
    """Return a power of two as an axis has it: 512, 4k, 1M."""
    for unit, size in (("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("k", 1 << 10)):
        if number >= size:
            return f"{number // size}{unit}"
    return f"{number}"
