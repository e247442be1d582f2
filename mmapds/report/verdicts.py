"""Verdicts on the facts of a report: a sentence and a grade for each check."""

from collections.abc import Iterator
from typing import NamedTuple

from ..errors import counted
from .gather import CURRENT
from .numbers import Facts

GOOD, FAIR, POOR, NOTE = "good", "fair", "poor", "note"
"""Grades; a note is on what follows from the data, or from a choice of the user, and needs no repair."""

_ORDER = (POOR, FAIR, NOTE, GOOD)
_COLUMNS = 8  # fewer parts of an epoch do not tell clumps from chance


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


def percent(share: float) -> str:
    """Return a share in three digits; a share above 0 never looks like 0."""
    number = 100 * share
    if 0 < abs(number) < 0.005:
        return "under 0.01 %"
    digits = 0 if abs(number) >= 99.95 else 1 if abs(number) >= 9.995 else 2
    return f"{number:.{digits}f} %"


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
