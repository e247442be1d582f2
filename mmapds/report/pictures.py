"""Charts of a report as SVG, by matplotlib: in the colours of the page, light or dark, and of reproducible bytes."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import Error, either

_WIDTH, _HEIGHT = 4.7, 2.9  # inches of 72 points; a page on a telephone is about as wide
_COLOURS = {
    "ink": "#0a0a01",
    "soft": "#0a0a02",
    "line": "#0a0a03",
    "one": "#0a0a04",
    "two": "#0a0a05",
    "three": "#0a0a06",
}
"""What matplotlib draws, and by which variable of the page's style it is replaced."""

_STYLE = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.edgecolor": _COLOURS["line"],
    "axes.labelcolor": _COLOURS["soft"],
    "axes.labelsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _COLOURS["line"],
    "grid.linewidth": 0.6,
    "xtick.color": _COLOURS["line"],
    "ytick.color": _COLOURS["line"],
    "xtick.labelcolor": _COLOURS["soft"],
    "ytick.labelcolor": _COLOURS["soft"],
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "text.color": _COLOURS["ink"],
    "legend.frameon": False,
    "legend.labelcolor": _COLOURS["soft"],
    "lines.linewidth": 1.8,
}
_HEAT = (46, 134, 193)  # seen on a light ground and on a dark one

Draw = Callable[[Any], None]
"""Draws on the axes that it is given."""


def check_matplotlib() -> None:
    """Raise Error, with what to install, where there is no matplotlib."""
    try:
        import matplotlib.figure  # noqa: F401 - start-up time, and an extra
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise Error(
            "mmapds.report needs matplotlib; run: pip install 'mmapds[report]' (or give "
            f"{either('--json', 'no out')}, which needs none)"
        ) from None


def svg(name: str, label: str, draw: Draw) -> str:
    """Return a chart as an SVG element.

    Args:
      name: different for each chart of a page; ids begin with it.
      label: what the chart shows, for those who do not see it.
      draw: draws it.
    """
    import matplotlib.style
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.style.context(["default", {**_STYLE, "svg.hashsalt": name}]):
        figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        draw(figure.add_subplot())
        out = io.StringIO()
        FigureCanvasSVG(figure)  # named, so that neither a display nor the backend of the user's choice is asked for
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return _for_the_page(out.getvalue(), name, label)


def _for_the_page(text: str, name: str, label: str) -> str:
    """Return what matplotlib wrote as an element of a page, in its colours and fonts."""
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    for colour, code in _COLOURS.items():
        text = text.replace(code, f"var(--{colour})")
    text = re.sub(r"font-family:\s[^;\"]*;*\s*", "", re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL))
    used = set(re.findall(r"(?:url\(#|href=\"#)([\w-]+)", text))
    text = re.sub(r' id="([\w.-]+)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", text)
    text = re.sub(r"(url\(#|href=\"#)", rf"\g<1>{name}-", text)
    text = re.sub(r'\s(width|height)="[^"]*"', "", text, count=2)  # of the chart, which is as wide as its figure
    text = text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    return re.sub(r"\s*\n\s*", " ", re.sub(r">\s+<", "><", text)).strip()


def histogram_of_lengths(edges: Sequence[int], records: Sequence[int], shares: Sequence[float], unit: str) -> Draw:
    """Return a chart of how records, and what they hold, are spread over lengths."""
    bounds, begins, is_log = _bins(edges)
    counts = _heights(records, bounds, begins) / max(sum(records), 1)
    tokens = _heights(shares, bounds, begins)

    def draw(axes: Any) -> None:
        axes.stairs(counts, bounds, fill=True, color=_COLOURS["one"], alpha=0.55, linewidth=0, label="records")
        axes.stairs(tokens, bounds, baseline=None, color=_COLOURS["two"], linewidth=1.8, label=unit)
        axes.set_ylim(bottom=0)
        _label(axes, bounds, is_log)
        axes.set_xlabel(f"{unit} in a record")
        axes.set_yticks([])
        axes.set_ylabel("share")
        _legend(axes)

    return draw


def curve_of_budgets(curve: Sequence[dict[str, Any]], chosen: Sequence[int], unit: str) -> Draw:
    """Return a chart of what is lost at each largest length, where longer records are dropped or cut off."""
    budgets = [each["budget"] for each in curve]
    is_log = budgets[-1] > 12 * budgets[0]
    places = np.array(budgets, np.float64)
    places = np.log10(places) if is_log else places

    def draw(axes: Any) -> None:
        for key, colour, dash, label in (
            ("dropped_share", "one", "-", "longer records dropped"),
            ("truncated_share", "two", "--", "longer records cut off"),
        ):
            axes.plot(places, [100 * each[key] for each in curve], dash, color=_COLOURS[colour], label=label)
        for budget in chosen:
            if budgets[0] <= budget <= budgets[-1]:
                axes.axvline(np.log10(float(budget)) if is_log else budget, color=_COLOURS["ink"], linewidth=1)
        _label(axes, places, is_log)
        axes.set_xlabel(f"longest record allowed, {unit}")
        axes.set_ylabel(f"% of all {unit} lost")
        axes.set_ylim(0, 102)
        _legend(axes)

    return draw


def histogram_of_batches(edges: Sequence[int], batches: Sequence[int], what: str) -> Draw:
    """Return a chart of a number of each batch."""
    bounds, begins, is_log = _bins(edges)
    height = _heights(batches, bounds, begins) / max(sum(batches), 1)

    def draw(axes: Any) -> None:
        axes.stairs(height, bounds, fill=True, color=_COLOURS["one"], alpha=0.75, linewidth=0)
        axes.set_ylim(bottom=0)
        _label(axes, bounds, is_log)
        axes.set_xlabel(what)
        axes.set_ylabel("share of batches")
        axes.set_yticks([])
        if len(edges) == 2:
            axes.set_xticks([edges[0]], [f"{edges[0]:,}"])

    return draw


def strip_of_ranks(strip: Sequence[Sequence[float]]) -> Draw:
    """Return a chart of the cost of each rank in some steps, in terms of the mean of the step."""
    costs = np.array(strip)
    steps = np.arange(len(costs))

    def draw(axes: Any) -> None:
        axes.vlines(steps, costs.min(axis=1), costs.max(axis=1), color=_COLOURS["line"], linewidth=3)
        axes.scatter(
            np.repeat(steps, costs.shape[1]), costs.ravel(), s=9, color=_COLOURS["one"], alpha=0.55, linewidth=0
        )
        axes.scatter(steps, costs.max(axis=1), s=14, color=_COLOURS["two"], linewidth=0, label="the slowest rank")
        axes.axhline(1, color=_COLOURS["ink"], linewidth=0.8)
        far = max(float(np.abs(costs - 1).max()) * 1.15, 0.05)
        axes.set_ylim(max(1 - far, 0), 1 + far)
        axes.set_xticks([0, max(len(costs) - 1, 1)], ["start", "end"])
        axes.set_xlabel("steps, spread evenly over the epoch")
        axes.set_ylabel("cost, mean of the step = 1")
        _legend(axes)

    return draw


def picture_of_density(cells: Sequence[Sequence[float]]) -> Draw:
    """Return a picture of which part of the dataset each part of the epoch has its records from."""
    shares = np.array(cells).T
    ground = np.clip(shares / max(float(np.quantile(shares, 0.995)), 2.0), 0, 1)
    pixels = np.zeros((*ground.shape, 4), np.uint8)
    pixels[..., :3] = _HEAT
    pixels[..., 3] = (ground * 255).round()

    def draw(axes: Any) -> None:
        axes.imshow(pixels, aspect="auto", origin="lower", extent=(0, 1, 0, 1), interpolation="nearest")
        axes.grid(False)
        axes.set_xticks([0, 0.5, 1], ["start", "middle", "end"])
        axes.set_yticks([0, 1], ["first", "last"])
        axes.set_xlabel("place in the epoch")
        axes.set_ylabel("record of the dataset")
        for spine in axes.spines.values():
            spine.set_visible(True)

    return draw


def curve_of_gaps(gaps: dict[str, dict[str, Any]]) -> Draw:
    """Return a chart of the gaps between records that are read at about one time, against those of a random order."""

    def draw(axes: Any) -> None:
        ideal = np.linspace(0, 6, 61)
        axes.plot(ideal, 100 * np.exp(-ideal), color=_COLOURS["ink"], linewidth=4, alpha=0.25, label="random order")
        for (name, found), colour, dash in zip(gaps.items(), ("one", "two", "three"), ("-", "--", ":"), strict=False):
            points = [(x, 100 * y) for x, y in found["curve"] if y > 0]
            axes.plot(*zip(*points, strict=True), dash, color=_COLOURS[colour], label=f"{name} of the epoch")
        axes.set_yscale("log")
        axes.set_ylim(0.2, 130)
        axes.set_yticks([1, 10, 100], ["1 %", "10 %", "100 %"])
        axes.minorticks_off()
        axes.set_xlim(0, 6)
        axes.set_xlabel("gap to the next record, mean = 1")
        axes.set_ylabel("gaps that are longer")
        _legend(axes)

    return draw


def bars_of_bytes(steps: Sequence[dict[str, int]], page: int) -> Draw:
    """Return a chart of what some steps read: the bytes of records, and of the pages that these lie on."""
    wanted = np.array([each["bytes"] for each in steps], np.float64) / 1e6
    touched = np.array([each["pages"] * page for each in steps], np.float64) / 1e6
    at = np.arange(len(steps))

    def draw(axes: Any) -> None:
        axes.bar(at, touched, 0.82, color=_COLOURS["line"], linewidth=0, label="pages they lie on")
        axes.bar(at, wanted, 0.82, color=_COLOURS["one"], linewidth=0, label="records")
        axes.set_xticks([0, max(len(steps) - 1, 1)], ["start", "end"])
        axes.set_xlim(-0.7, max(len(steps) - 1, 1) + 0.7)
        axes.set_ylim(0, float(touched.max()) * 1.05 or 1)
        axes.set_xlabel("steps, spread evenly over the epoch")
        axes.set_ylabel("MB in a step")
        _legend(axes)

    return draw


def waits_of_loaders(names: Sequence[str], ways: Sequence[dict[str, Any]]) -> Draw:
    """Return a chart of what loaders make a trainer wait, in their cold passes and in their warm ones."""

    def draw(axes: Any) -> None:
        for which, colour, shift in (("cold", "two", -0.13), ("warm", "one", 0.13)):
            found = [(at + shift, way[which]) for at, way in enumerate(ways) if way[which] is not None]
            places = [at for at, _ in found]
            low, high = ([max(each[name] * 1e3, 1e-4) for _, each in found] for name in ("wait_p50", "wait_p99"))
            axes.hlines(places, low, high, color=_COLOURS[colour], linewidth=2.5, alpha=0.55)
            axes.scatter(low, places, s=26, color=_COLOURS[colour], linewidth=0, label=which)
        axes.set_xscale("log")
        axes.set_ylim(len(ways) - 0.4, -0.6)
        axes.set_yticks(range(len(ways)), names)
        axes.set_xlabel("wait for a batch, ms")
        _legend(axes)

    return draw


def bars_of_ranks(shares: Sequence[float]) -> Draw:
    """Return a chart of a share of each rank."""

    def draw(axes: Any) -> None:
        axes.bar(range(len(shares)), [100 * share for share in shares], 0.8, color=_COLOURS["one"], linewidth=0)
        axes.set_ylim(0, max(100 * max(shares), 2) * 1.1)
        axes.set_xticks(sorted({0, len(shares) - 1}))
        axes.set_xlabel("rank")
        axes.set_ylabel("% of its time")

    return draw


def _legend(axes: Any) -> None:
    """Put the legend above the chart, where it covers nothing."""
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, borderaxespad=0.2, columnspacing=1.4)


def _bins(edges: Sequence[int]) -> tuple[Any, Any, bool]:
    """Return the edges of bins on their axis, the first bin behind each, and whether the axis is logarithmic.

    It is where bins grow. Edges that float64 cannot tell apart are one, and what lies between them is of the bin beside
    them.
    """
    found = np.array(edges, np.float64)
    is_log = len(edges) > 2 and edges[-2] > 12 * max(edges[1], 1)
    if is_log:
        found = np.log10(np.maximum(found, 0.7))
    bounds, begins = np.unique(found, return_index=True)
    if len(bounds) == 1:
        return np.array([bounds[0], np.nextafter(bounds[0], np.inf)]), begins, is_log
    return bounds, begins[:-1], is_log


def _heights(numbers: Sequence[float], bounds: Any, begins: Any) -> Any:
    """Return the heights of bins whose areas are numbers of the bins that they are made of: see `_bins`."""
    return np.add.reduceat(np.array(numbers, np.float64), begins) / np.diff(bounds)


def _label_powers(axes: Any, low: float, high: float) -> None:
    """Label an axis of logarithms with powers of two."""
    powers = [power for power in range(65) if low <= np.log10(2.0**power) <= high]
    shown = powers[:: max(-(-len(powers) // 6), 1)]
    axes.set_xticks([np.log10(2.0**power) for power in shown], [short(2**power) for power in shown])
    axes.set_xlim(low, high)


def _label(axes: Any, bounds: Any, is_log: bool) -> None:
    """Label the axis of lengths with round numbers."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    if is_log:
        _label_powers(axes, float(bounds[0]), float(bounds[-1]))
        return
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def short(number: int) -> str:
    """Return a number as an axis has it: 512, 4k, 1M where it is that many times 1,024."""
    for unit, size in (("M", 1 << 20), ("k", 1 << 10)):
        if number >= size and number % size == 0:
            return f"{number // size}{unit}"
    return f"{number:,}"
