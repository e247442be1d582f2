"""Charts as SVG, by matplotlib, in the colours and the font of the page. The same numbers give the same bytes.

A chart is laid out for a telephone, 330 units wide with text of 12 units. On wide screens the page makes the text
smaller in proportion, so that it is about as large as the text around it.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from .numbers import Facts

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
_NOT_SHOWN = r'<metadata>.*?</metadata>|<style.*?</style>|(?<=<g)\sid="[^"]*"|font-family:[^;"]*;?\s*'
"""What the page has itself, or once for all charts."""


def svg(name: str, draw: Callable[..., None], *numbers: Any) -> str:
    """Return a chart as an SVG element.

    Args:
      name: another one for each chart of a page, so that ids differ.
      draw: draws on the axes that it is given, with the numbers.
    """
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
    edges, across, whole = histogram["edges"], f"length of a record, {unit}", f"records or {unit}"
    bars = {"fill": True, "color": _COLOURS["one"], "alpha": 0.55, "linewidth": 0}
    line = {"baseline": None, "color": _COLOURS["two"], "linewidth": 1.8}
    _bars(axes, edges, histogram["records"], across, whole, label="records", **bars)
    _bars(axes, edges, histogram["share_of_total"], across, whole, label=unit, **line)


def budgets(axes: Any, curve: Sequence[Facts], chosen: Sequence[int], unit: str) -> None:
    """Draw what is lost at each largest length, by dropping longer records or by cutting them."""
    limits = np.array([each["budget"] for each in curve], np.float64)
    dropped, cut = ([100 * each[name] for each in curve] for name in ("dropped_share", "truncated_share"))
    axes.plot(limits, dropped, color=_COLOURS["one"], label="longer ones dropped")
    axes.plot(limits, cut, "--", color=_COLOURS["two"], label="cut")
    for limit in chosen:
        if limits[0] <= limit <= limits[-1]:
            axes.axvline(limit, color=_COLOURS["ink"], linewidth=1)
    _label_lengths(axes, limits, is_log=limits[-1] > _GROWING * limits[0])
    axes.set(xlabel=f"longest record allowed, {unit}", ylabel=f"% of all {unit} lost", ylim=(0, 102))


def batches(axes: Any, numbers: Facts, across: str, whole: str) -> None:
    """Draw how a number of each batch is distributed."""
    bars = {"fill": True, "color": _COLOURS["one"], "alpha": 0.75, "linewidth": 0}
    _bars(axes, numbers["edges"], numbers["batches"], across, whole, **bars)


def costs(axes: Any, strip: Sequence[Sequence[float]]) -> None:
    """Draw the cost of each rank in some steps, where the mean of each step is 1."""
    found = np.array(strip)
    steps = np.linspace(0, 100, len(found)) if len(found) > 1 else np.array([50.0])
    margin = 60 / max(len(found), 2)
    axes.vlines(steps, found.min(axis=1), found.max(axis=1), color=_COLOURS["line"], linewidth=3)
    axes.scatter(np.repeat(steps, found.shape[1]), found.ravel(), s=9, color=_COLOURS["one"], alpha=0.55, lw=0)
    axes.scatter(steps, found.max(axis=1), s=14, color=_COLOURS["two"], lw=0, label="the slowest rank")
    axes.axhline(1, color=_COLOURS["ink"], linewidth=0.8)
    far = max(float(np.abs(found - 1).max()) * 1.15, 0.05)
    axes.set(xlim=(-margin, 100 + margin), ylim=(max(1 - far, 0), 1 + far), xticks=[0, 50, 100])
    axes.set(xlabel="position in the epoch, %", ylabel="cost, mean of step = 1")


def density(axes: Any, cells: Sequence[Sequence[float]]) -> None:
    """Draw which part of the dataset each part of the epoch has its records from."""
    shares = np.array(cells).T
    strength = np.clip(shares / max(float(np.quantile(shares, 0.995)), 2.0), 0, 1)
    pixels = np.zeros((*strength.shape, 4), np.uint8)
    pixels[..., :3] = _HEAT
    pixels[..., 3] = (strength * 255).round()
    axes.imshow(pixels, aspect="auto", origin="lower", extent=(0, 100, 0, 100), interpolation="nearest")
    axes.grid(False)
    axes.set(xlabel="position in the epoch, %", ylabel="position in the dataset, %")
    axes.set(xticks=[0, 50, 100], yticks=[0, 50, 100])


def gaps(axes: Any, found: dict[str, Facts]) -> None:
    """Draw the gaps between records that are read at about one time, beside those of a random order."""
    ideal = np.linspace(0, 6, 61)
    axes.plot(ideal, 100 * np.exp(-ideal), color=_COLOURS["ink"], linewidth=4, alpha=0.25, label="random")
    for (name, each), colour, dash in zip(found.items(), ("one", "two", "three"), ("-", "--", ":"), strict=True):
        points = [(x, 100 * y) for x, y in each["curve"] if y > 0]
        if points:
            axes.plot(*zip(*points, strict=True), dash, color=_COLOURS[colour], label=name)
    axes.set(xlim=(0, 6), xlabel="gap to the next record, mean = 1", ylabel="% of longer gaps")
    axes.set(yscale="log", ylim=(0.2, 130), yticks=[1, 10, 100], yticklabels=["1", "10", "100"])
    axes.minorticks_off()


def _bars(axes: Any, edges: Sequence[int], counts: Sequence[float], across: str, whole: str, **style: Any) -> None:
    """Draw a histogram.

    A wide bar is as much lower, so that its area is its share. Where bins grow, the axis is logarithmic, and a height
    is the share of a doubling. Otherwise it is the share of the narrowest bar.
    """
    heights = 100 * np.array(counts, np.float64) / max(sum(counts), 1)
    is_log = len(edges) > 2 and edges[-2] > _GROWING * max(edges[1], 1)
    bounds = np.maximum(np.array(edges, np.float64), 0.7 if is_log else 0)
    widths = np.diff(np.log2(bounds)) if is_log else np.diff(bounds)
    widths[widths == 0] = 1  # float64 rounds neighbours of large numbers to one
    axes.stairs(heights / (widths if is_log else widths / widths.min()), bounds, **style)
    _label_lengths(axes, bounds, is_log=is_log)
    axes.set(xlabel=across, ylabel="% per doubling" if is_log else f"% of {whole}")
    if len(edges) == 2:
        axes.set_xticks([bounds.mean()], [f"{edges[0]:,}"])  # in the middle, clear of the other axis


def _label_lengths(axes: Any, lengths: Any, *, is_log: bool) -> None:
    """Label the axis of lengths: with powers of two where it is logarithmic, otherwise with round numbers."""
    if is_log:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(LogLocator(base=2, numticks=7))
        axes.xaxis.set_major_formatter(FuncFormatter(_short))
        axes.minorticks_off()
    else:
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    if lengths[0] < lengths[-1]:
        axes.set_xlim(lengths[0], lengths[-1])


def _short(power_of_two: float, _: int) -> str:
    """Return a power of two as an axis has it: 512, 4k, 1M."""
    thousands = min(max(round(math.log2(power_of_two)), 0) // 10, 6)
    return f"{power_of_two / 1024**thousands:.0f}{' kMGTPE'[thousands].strip()}"
