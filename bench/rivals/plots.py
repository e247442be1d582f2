"""Plots of time over n as SVG, light or dark as the reader has it, and of reproducible bytes."""

import importlib.resources
import re
import statistics

from mmapds.report.page import svg

SERIES = ("#1f86d0", "#d9642c", "#5f9a3c", "#a06cd5", "#c2434f", "#8a8a3a")
"""Seen on a light ground and on a dark one."""
MARKS = "os^Dv*"


def plots(facts):
    """Yield the name and the SVG of each plot."""
    for contest, what in (("samplers", "index"), ("budgets", "batch")):
        if contest not in facts:
            continue
        rivals = facts[contest]["rivals"].values()
        seconds = {each["title"]: points(each, lambda one: one["seconds"]) for each in rivals}
        yield f"{contest}-time", plot(f"{contest}-time", f"seconds to the first {what}", seconds)


def points(rival, value):
    """Return the sizes at which a rival was not stopped, and its median there."""
    return [
        (int(n), statistics.median(map(value, rounds)))
        for n, rounds in rival["sizes"].items()
        if not any("stopped" in one for one in rounds)
    ]


def plot(name, label, series):
    """Return a plot of lines over n, both axes logarithmic."""

    def draw(axes):
        for (title, found), colour, mark in zip(series.items(), SERIES, MARKS, strict=False):
            axes.plot(*zip(*found, strict=True), marker=mark, markersize=4, color=colour, label=title)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.minorticks_off()
        axes.set_xlabel("n, records")
        axes.set_ylabel(label, fontsize=8.5)
        above = {"loc": "lower left", "bbox_to_anchor": (-0.1, 1.0), "borderaxespad": 0.3}
        axes.legend(ncols=2, fontsize=7, labelspacing=0.3, handlelength=1.6, columnspacing=1, **above)

    return standing_alone(svg(name, draw), label)


def standing_alone(text, label):
    """Return a chart as a file of its own, with the colours of the page of reports."""
    page = importlib.resources.files("mmapds.report").joinpath("report.html.j2").read_text()
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text)
    width, height = (float(each) for each in found.groups())
    light, dark = (" ".join(block.split()) for block in re.findall(r":root \{(.*?)\}", page, re.DOTALL))
    style = (
        f"<style>svg {{ {light} }} @media (prefers-color-scheme: dark) {{ svg {{ {dark} }} }} "
        "text { font-family: sans-serif; }</style>"
        f'<rect width="{width:g}" height="{height:g}" style="fill: var(--card)"/>'
    )
    text = text.replace(
        "<svg ", f'<svg role="img" aria-label="{label}" width="{2 * width:g}" height="{2 * height:g}" ', 1
    )
    head, rest = text.split(">", 1)
    return f"{head}>{style}{rest}\n"
