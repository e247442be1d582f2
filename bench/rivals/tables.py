"""Tables of what was measured, as Markdown."""

import statistics
from collections.abc import Iterable

NONE = "\u2013"


def render(facts):
    """Return all tables, with the least and the largest ratio beside the median."""
    shown = {
        "stores": ("Stores", _stores),
        "samplers": ("Samplers", _samplers),
        "budgets": ("Token budgets", lambda found: _planners(found, "padding")),
        "packers": ("Packs", lambda found: _planners(found, None)),
    }
    return _joined(facts, shown, lambda found: [found["about"]], "##")


def brief(facts):
    """Return the table of the documentation."""
    return _joined(facts, {"stores": ("Stores", _brief_stores)}, lambda _: [], "###")


def _joined(facts, shown, ending, heading):
    parts = []
    for contest, (title, parts_of) in shown.items():
        if contest in facts:
            parts += [f"{heading} {title}", *parts_of(facts[contest]), *ending(facts[contest])]
    return "\n\n".join(parts)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table of Markdown."""
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _name(rival):
    return f"{rival['title']} {rival['version']}" if rival["version"] else rival["title"]


def _stores(found):
    rivals, ours = found["rivals"].values(), next(iter(found["rivals"].values()))
    idle = max(found["without_data"])
    yield (
        f"{found['records']:,} records of JSON Lines, {size(found['bytes'])}; a record comes out as a dict. "
        "*On disk* is what is written beside the source. *Memory* is what opening, and reading the first record, add "
        "to the memory that is a process's own; a worker of a loader has as much more than one that reads nothing, of "
        f"{size(idle)}."
    )
    yield table(
        ("", "what is kept", "preparing", "on disk", "opening", "memory", "a worker's memory"),
        (
            (
                _name(each),
                each["how"],
                *_prepared(each),
                duration(_median(each["rounds"], "open")),
                size(_median(each["rounds"], "memory")),
                _of_worker(each, idle),
            )
            for each in rivals
        ),
    )
    yield "Records a second, in random order, from memory, and their ratio to ours in the same round:"
    yield table(
        ("", "one by one", "in batches of 256", "in a shuffled epoch", "the epoch's first record"),
        (
            (
                _name(each),
                *(_rate(each["rounds"], ours["rounds"], what, spread=True) for what in ("read", "batch", "epoch")),
                duration(_median(each["rounds"], "first")),
            )
            for each in rivals
        ),
    )
    yield from _reasons(rivals)


def _brief_stores(found):
    rivals, ours = found["rivals"].values(), next(iter(found["rivals"].values()))
    idle = max(found["without_data"])
    yield (
        f"{found['records']:,} records of JSON Lines, {size(found['bytes'])}, from memory, in random order: records a "
        "second. *Memory* is what a worker has beyond one that reads nothing."
    )
    yield table(
        ("", "preparing", "on disk", "memory", "one by one", "batches of 256", "a shuffled epoch"),
        (
            (
                _name(each),
                *_prepared(each),
                _of_worker(each, idle),
                *(_rate(each["rounds"], ours["rounds"], what, spread=False) for what in ("read", "batch", "epoch")),
            )
            for each in rivals
        ),
    )


def _prepared(each):
    """Return how long a store takes to be written, and how much it takes on the disk."""
    prepared = each["prepare"]
    return (duration(prepared["seconds"]), size(prepared["bytes"])) if prepared["bytes"] else (NONE, NONE)


def _of_worker(each, idle):
    return f"+{size(max(max(each['workers']) - idle, 0))}" if "workers" in each else NONE


def _reasons(rivals):
    """Yield why some cells are empty."""
    for each in rivals:
        for reason in dict.fromkeys(each["cannot"].values()):
            yield f"{each['title']} has none of what is marked {NONE}: {reason}."


def _rate(rounds, ours, what, *, spread):
    if what not in rounds[0]:
        return NONE
    ratios = [one[what] / other[what] for one, other in zip(rounds, ours, strict=True)]
    also = f", {min(ratios):.2g} to {max(ratios):.2g}" if spread else ""
    return f"{_median(rounds, what):,.0f} ({statistics.median(ratios):.2g}x{also})"


def _samplers(found):
    rivals = list(found["rivals"].values())
    sizes = list(dict.fromkeys(n for each in rivals for n in each["sizes"]))
    heads = [power(int(n)) for n in sizes]
    yield "Time to the first index of an epoch of n records, for one rank of 8, the sampler included:"
    yield table(("", *heads), ((_name(each), *(_time(each, n) for n in sizes)) for each in rivals))
    yield "The most memory of its own that the process had meanwhile, beyond what it had before:"
    yield table(("", *heads), ((_name(each), *(_memory(each, n) for n in sizes)) for each in rivals))


def _epochs(found, column):
    rivals = found["rivals"].values()
    yield f"{found['records']:,} records with lengths as texts have them, for one process:"
    heads = (
        "",
        "batches",
        "full",
        *([column] if column else []),
        "over the budget",
        "whole epoch",
        "resuming half-way",
    )
    yield table(heads, ((_name(each), *_epoch(each, column)) for each in rivals))


def _planners(found, column):
    rivals = list(found["rivals"].values())
    sizes = list(dict.fromkeys(n for each in rivals for n in each["sizes"]))
    yield from _epochs(found, column)
    yield "Time to the first batch, from lengths that no one has sorted yet, and the most memory meanwhile:"
    yield table(
        ("", *(power(int(n)) for n in sizes)),
        (
            (_name(each), *(f"{_time(each, n)}, {_memory(each, n)}" if n in each["sizes"] else NONE for n in sizes))
            for each in rivals
        ),
    )
    yield from _reasons(rivals)


def _epoch(each, column):
    epoch = each["epoch"]
    if "stopped" in epoch:
        return [epoch["stopped"], *[NONE] * (5 if column else 4)]
    shares = [epoch["fill"], *([epoch[column]] if column else []), epoch["over"]]
    resume = each.get("resume", {})
    return [
        f"{epoch['batches']:,}",
        *(f"{share:.2%}" for share in shares),
        duration(epoch["seconds"]),
        resume.get("stopped") or (duration(resume["seconds"]) if resume else NONE),
    ]


def _time(each, n):
    return _unless_stopped(each, n, lambda rounds: duration(_median(rounds, "seconds")))


def _memory(each, n):
    return _unless_stopped(each, n, lambda rounds: size(max(grown(one) for one in rounds)))


def grown(measured):
    """Return the most memory that a job had beyond what it had before."""
    return max(measured["peak"] - measured["before"], measured["memory"], 0)


def _unless_stopped(each, n, words):
    rounds = each["sizes"].get(n)
    if rounds is None:
        return NONE
    return next((one["stopped"] for one in rounds if "stopped" in one), None) or words(rounds)


def _median(rounds, what):
    return statistics.median(one[what] for one in rounds)


def duration(seconds: float) -> str:
    """Return a time with a unit, to three digits."""
    for unit, length in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}" if seconds < 1000 * length else f"{seconds / length:,.0f} {unit}"
    return f"{seconds * 1e6:.3g} us"


def size(number: float) -> str:
    """Return a number of bytes with a unit, to a tenth."""
    for unit, length in (("GB", 1e9), ("MB", 1e6)):
        if number >= length:
            return f"{number / length:.1f} {unit}" if number < 100 * length else f"{number / length:,.0f} {unit}"
    return f"{number / 1e6:.1f} MB"


def power(n: int) -> str:
    """Return a power of ten as such."""
    exponent = len(str(n)) - 1
    return f"n = 10^{exponent}" if n == 10**exponent else f"n = {n:,}"
