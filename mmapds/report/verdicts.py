"""Verdicts on the facts of a report: a sentence and a grade for each check."""

from collections.abc import Iterator
from typing import NamedTuple

from ..errors import counted
from .gather import CURRENT
from .lengths import Facts

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
    """Return the verdicts, worst ones first.

    Args:
      labels: the names of the plans, which begin their sentences where there are several.
    """
    found = list(_coverage(facts["coverage"]))
    for label, plan in zip(labels, facts["plans"], strict=True):
        for each in (*_batches(plan["batches"]), *_shuffle(plan), *_reads(plan["reads"])):
            text = each.text if len(labels) == 1 else f"{label[0].upper()}{label[1:]}: {each.text}"
            found.append(each._replace(text=text))
    found += [*_samples(facts["samples"]), *_training(facts["training"])]
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


def _coverage(facts: Facts) -> Iterator[Verdict]:
    if facts["is_current"]:
        yield Verdict(GOOD, "covers", "Every source is the same as when it was indexed.")
    else:
        others = sum(count for state, count in facts["states"].items() if state not in CURRENT)
        sources = counted(facts["sources"], "source")
        yield Verdict(POOR, "covers", f"{others:,} of {sources} changed or cannot be read; index them again.")
    if facts["left_out"]:
        yield Verdict(FAIR, "covers", f"The index leaves {counted(facts['left_out'], 'record')} out.")


def _batches(facts: Facts) -> Iterator[Verdict]:
    left_out = sum(facts["left_out"].values())
    if left_out:
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


def _shuffle(plan: Facts) -> Iterator[Verdict]:
    facts, chunk_size = plan["shuffle"], plan["options"]["chunk_size"]
    ratios = {n: each["distance"] / each["bound"] for n, each in facts["gaps"].items() if each["distance"] is not None}
    if not ratios:
        return
    worst = max(ratios, key=ratios.__getitem__)
    near, anywhere = level(ratios[worst], 1.5, 4), GOOD
    if facts["density"]["columns"] >= _COLUMNS:
        anywhere = level(facts["density"]["dispersion"], 1.3, 3)
    grade = min(near, anywhere, key=_ORDER.index)
    how = "somewhat off" if grade == FAIR else "far from"
    where = f"parts of the epoch, most of all its {worst}," if near == grade else "parts of the epoch"
    if grade == GOOD:
        yield Verdict(GOOD, "shuffle", "Every part of the epoch is as random as a shuffle of all records.")
    elif chunk_size is not None:
        text = f"Chunks of {chunk_size:,} records were chosen, and mix less: {where} are {how} a random choice."
        yield Verdict(NOTE, "shuffle", text)
    elif plan["batches"]["kind"] != "fixed":
        text = "The shuffle is of all records, but batches are planned by length, and lengths vary over the dataset."
        yield Verdict(NOTE, "shuffle", text)
    else:
        yield Verdict(grade, "shuffle", f"Records are not mixed evenly: {where} are {how} a random choice.")


def _reads(facts: Facts | None) -> Iterator[Verdict]:
    if facts is not None:
        ratio = facts["amplification"]
        text = f"A step touches {ratio:.1f} times the bytes of its records. It matters if data do not fit into memory."
        yield Verdict(level(ratio, 2, 50), "reads", text)


def _samples(facts: Facts | None) -> Iterator[Verdict]:
    if facts is None:
        return
    if facts["undecodable"]:
        yield Verdict(POOR, "samples", f"Some of {counted(facts['tried'], 'sample')} cannot be decoded.")
    else:
        yield Verdict(GOOD, "samples", f"All of {counted(facts['tried'], 'sample')} that were tried can be decoded.")


def _training(facts: Facts | None) -> Iterator[Verdict]:
    if facts is not None:
        text = f"The training run waited {percent(facts['waiting'])} of its time for data."
        yield Verdict(level(facts["waiting"], 0.02, 0.1), "training", text)
