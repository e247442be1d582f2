"""What is good and what is bad about the facts of a report, in sentences."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from ..errors import counted

Facts = dict[str, Any]
GOOD, FAIR, POOR = "good", "fair", "poor"
_COLUMNS = 8  # parts of an epoch whose spread over the dataset can be told from that of random records


class Verdict(NamedTuple):
    """A sentence, the section that it is on, and how good that is."""

    level: str
    section: str
    text: str


def verdicts(facts: Facts) -> list[Verdict]:
    """Return a sentence on each thing that a reader looks for first, worst ones first."""
    found = list(_coverage(facts["coverage"]))
    several = len(facts["plans"]) > 1
    for plan in facts["plans"]:
        prefix = f"{plan['title'][0].upper()}{plan['title'][1:]}: "
        for each in (*_batches(plan["batches"]), *_shuffle(plan), *_reads(plan["reads"])):
            text = each.text if not several else f"{prefix}{each.text[0].lower()}{each.text[1:]}"
            found.append(each._replace(text=text))
    found += [*_samples(facts["samples"]), *_training(facts["training"])]
    return sorted(found, key=lambda each: (POOR, FAIR, GOOD).index(each.level))


def level(number: float, good: float, fair: float) -> str:
    """Return how good a number is that should be small."""
    return GOOD if number <= good else FAIR if number <= fair else POOR


def percent(share: float) -> str:
    """Return a share for people: three digits at most, and never 0 for what is not."""
    number = 100 * share
    if 0 < abs(number) < 0.005:
        return "under 0.01 %"
    digits = 0 if abs(number) >= 99.95 else 1 if abs(number) >= 9.995 else 2
    return f"{number:.{digits}f} %"


def _coverage(facts: Facts) -> Iterator[Verdict]:
    if facts["is_current"]:
        yield Verdict(GOOD, "covers", "Every source is what it was when it was indexed.")
    else:
        others = sum(count for state, count in facts["states"].items() if state not in ("unchanged", "touched"))
        yield Verdict(
            POOR,
            "covers",
            f"{others:,} of {counted(facts['sources'], 'source')} changed or cannot be read; index them again.",
        )
    if facts["left_out"]:
        yield Verdict(FAIR, "covers", f"The index leaves {counted(facts['left_out'], 'record')} out.")


def _batches(facts: Facts) -> Iterator[Verdict]:
    left_out = sum(facts["left_out"].values())
    if left_out:
        share = left_out / (left_out + facts["records"])
        what = " and ".join(f"{count:,} {why}" for why, count in facts["left_out"].items() if count)
        yield Verdict(level(share, 0.001, 0.02), "batches", f"{percent(share)} of the records are left out: {what}.")
    if facts["kind"] == "packs":
        empty = 1 - facts["fill"]
        yield Verdict(level(empty, 0.02, 0.1), "batches", f"Packs are {percent(facts['fill'])} full.")
    elif "padding" in facts:
        text = f"{percent(facts['padding'])} of a batch is padding"
        if facts["kind"] == "budget" and "random_padding" in facts:
            text += f", where random batches of this size would have {percent(facts['random_padding'])}"
        yield Verdict(level(facts["padding"], 0.02, 0.1), "batches", f"{text}.")
    if facts.get("cost"):
        waiting = facts["cost"]["waiting"]
        yield Verdict(
            level(waiting, 0.02, 0.1),
            "batches",
            f"Ranks wait {percent(waiting)} of the time for the slowest one, as far as time follows cost.",
        )


def _shuffle(plan: Facts) -> Iterator[Verdict]:
    facts = plan["shuffle"]
    found = {name: each for name, each in facts["gaps"].items() if each["distance"] is not None}
    if not found:
        return
    ratios = {name: each["distance"] / each["bound"] for name, each in found.items()}
    worst = max(ratios, key=ratios.__getitem__)
    near, anywhere = level(ratios[worst], 1.5, 4), GOOD
    if facts["density"]["columns"] >= _COLUMNS:
        anywhere = level(facts["density"]["dispersion"], 1.3, 3)
    grade = max(near, anywhere, key=(GOOD, FAIR, POOR).index)
    if grade == GOOD:
        yield Verdict(GOOD, "shuffle", "Any part of the epoch is as random as a shuffle of all records.")
    elif plan["batches"]["kind"] != "fixed" and plan["options"]["chunk_size"] is None:
        # The shuffle itself is that of all records: what is left is in the data.
        yield Verdict(
            FAIR, "shuffle", "Batches are planned by length, and some lengths lie in some parts of the dataset."
        )
    else:
        how = "somewhat off" if grade == FAIR else "far from"
        where = f"parts of the epoch are, most of all its {worst}," if near == grade else "parts of the epoch are"
        yield Verdict(grade, "shuffle", f"Not all records are mixed with all others: {where} {how} a random choice.")


def _reads(facts: Facts | None) -> Iterator[Verdict]:
    if facts is None:
        return
    ratio = facts["amplification"]
    text = (
        f"A step touches {ratio:.1f} times the bytes of its records, which matters where data do not fit into memory."
    )
    yield Verdict(level(ratio, 2, 50), "reads", text)


def _samples(facts: Facts | None) -> Iterator[Verdict]:
    if facts is None:
        return
    bad = len(facts["undecodable"])
    if bad:
        yield Verdict(POOR, "samples", f"Some of the {facts['tried']:,} samples that were tried cannot be decoded.")
    else:
        yield Verdict(GOOD, "samples", f"All of the {facts['tried']:,} samples that were tried can be decoded.")


def _training(facts: Facts | None) -> Iterator[Verdict]:
    if facts is not None:
        text = f"The training run waited {percent(facts['waiting'])} of its time for data."
        yield Verdict(level(facts["waiting"], 0.02, 0.1), "training", text)
