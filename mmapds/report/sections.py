"""The sections of a report's page. Each returns "" where there are no facts for it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..bench.choose import name_of
from ..errors import counted
from . import pictures
from .coverage import CURRENT
from .markup import charts, figure, folded, heading, paragraph, section, table
from .reads import PAGE
from .verdicts import percent

Facts = dict[str, Any]
_GROUPS = {
    "undecodable": "Cannot be decoded",
    "random": "At random",
    "longest": "The longest",
    "shortest": "The shortest",
}


def size(number: float) -> str:
    """Return a number of bytes for people."""
    units = ("bytes", "kB", "MB", "GB", "TB", "PB")
    power = next((at for at in range(5, 0, -1) if number >= 1000**at), 0)
    value = number / 1000**power
    return f"{value:,.0f} {units[power]}" if power == 0 or value >= 99.95 else f"{value:.1f} {units[power]}"


def rounded(number: float) -> str:
    """Return a large number for people: 1.3 billion."""
    for name, least in (("trillion", 10**12), ("billion", 10**9), ("million", 10**6)):
        if number >= least:
            return f"{number / least:,.1f} {name}"
    return f"{number:,.0f}"


def number_of(value: float) -> str:
    """Return a number for a table: whole ones with their digits grouped, others with what is worth knowing."""
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"


def covers(title: str, facts: Facts) -> str:
    """What the index covers."""
    coverage = facts["coverage"]
    sources, view = coverage["sources"], ""
    if coverage["records"] != coverage["records_of_indexes"]:
        view = f" ({coverage['records']:,} in this view)"
    lead = (
        f"{counted(coverage['records_of_indexes'], 'record')}{view}, in {counted(sources, 'source')} of format "
        f"{', '.join(coverage['formats'])}, {counted(coverage['bytes'], 'byte')}."
    )
    parts = [paragraph(lead), _sources(coverage)]
    names = ["min", "10 %", "median", "90 %", "99 %", "max", "mean"]
    rows = [
        [each["name"], each["type"], each["of"], *(number_of(each[name]) for name in names)]
        for each in coverage["columns"]
    ]
    parts.append(table(["column", "type", "of", *names], rows, texts=3))
    sampled = min((each["sampled"] for each in coverage["columns"]), default=0)
    if sampled < coverage["records_of_indexes"]:
        parts.append(paragraph(f"Percentiles of columns are of {sampled:,} records, evenly spaced.", "note"))
    return section("covers", title, *parts)


def _sources(coverage: Facts) -> str:
    listed = coverage["listed"]
    rows = [
        [
            each["path"],
            each.get("message", "current" if each["state"] in CURRENT else each["state"]),
            f"{each['records']:,}",
            size(each["bytes"]),
        ]
        for each in listed
    ]
    parts = [table(["source", "state", "records", "size"], rows, texts=2)]
    if len(listed) < coverage["sources"]:
        states = ", ".join(f"{count:,} {state}" for state, count in coverage["states"].items())
        parts.append(
            paragraph(f"{len(listed):,} of {counted(coverage['sources'], 'source')} are listed; all: {states}.", "note")
        )
    return "".join(parts)


def lengths(title: str, facts: Facts) -> str:
    """How long records are, and what a largest length costs."""
    found = facts["lengths"]
    if found is None:
        return ""
    unit, spread = found["unit"], found["quantiles"]
    lead = (
        f"Half of the records have up to {number_of(spread['50 %'])} {unit}, one in a hundred has more than "
        f"{number_of(spread['99 %'])}, and the longest has {number_of(spread['max'])}. All of them together: "
        f"{found['total']:,}."
    )
    if unit == "bytes":
        behind = ", with records behind them that were left out" * facts["coverage"]["sizes_have_left_out"]
        lead += (
            f" The index has no lengths, so these are the sizes of records{behind}; --length adds what batches are "
            "planned by."
        )
    chosen = [limit for limit in (_limit(plan) for plan in facts["plans"]) if limit is not None]
    shape = found["histogram"]
    drawn = charts(
        [
            figure(
                "lengths",
                "How lengths are spread",
                f"Bars are records, the line is the {unit} that they hold. Where it lies to the right of the bars, few "
                f"long records have most of the {unit}.",
                pictures.histogram_of_lengths(shape["edges"], shape["records"], shape["share_of_total"], unit),
            ),
            figure(
                "budgets",
                "What a largest length costs",
                f"The share of all {unit} that is lost where longer records are dropped, or cut off. Choose a length "
                "at which the lines have come down.",
                pictures.curve_of_budgets(found["curve"], chosen, unit),
            ),
        ]
    )
    quantiles = table(["", *spread], [["of a record", *map(number_of, spread.values())]])
    return section("lengths", title, paragraph(lead), drawn, quantiles, _budgets(found, chosen))


def _limit(plan: Facts) -> int | None:
    return None if plan["batches"]["kind"] == "fixed" else plan["batches"]["limit"]


def _budgets(found: Facts, chosen: Sequence[int]) -> str:
    unit = found["unit"]
    head = ["longest allowed", "records over it", "share", f"{unit} lost, dropped", f"{unit} lost, cut off"]
    rows = [
        [
            f"{each['budget']:,}",
            f"{each['over']:,}",
            percent(each["over_share"]),
            percent(each["dropped_share"]),
            percent(each["truncated_share"]),
        ]
        for each in found["budgets"]
    ]
    marked = [at for at, each in enumerate(found["budgets"]) if each["budget"] in chosen]
    return table(head, rows, chosen=marked)


def batches(title: str, facts: Facts) -> str:
    """How full and how equal batches are."""
    plans = [(plan["title"], plan["batches"]) for plan in facts["plans"]]
    if not plans:
        return ""
    lead = (
        "A step is one batch on every rank, and lasts as long as its slowest rank. Good plans have little padding, "
        "full batches, and ranks that cost the same."
    )
    rows: list[tuple[str, Callable[[Facts], str | None]]] = [
        ("ranks", lambda each: f"{each['ranks']:,}"),
        ("steps", lambda each: f"{each['steps']:,}"),
        ("batches, all ranks", lambda each: f"{each['batches']:,}"),
        ("records", lambda each: f"{each['records']:,}"),
        ("left out", lambda each: f"{sum(each['left_out'].values()):,}"),
        ("records in a batch, mean", lambda each: number_of(each["sizes"]["quantiles"]["mean"])),
        ("fewest and most", lambda each: _ends(each["sizes"]["quantiles"])),
        ("padding", lambda each: percent(each["padding"]) if "padding" in each else None),
        (
            "padding of random batches",
            lambda each: percent(each["random_padding"]) if "random_padding" in each else None,
        ),
        ("filled", lambda each: percent(each["fill"]) if "fill" in each else None),
        (
            "slowest rank, mean = 1",
            lambda each: f"{each['cost']['imbalance']['mean']:.4f}" if each.get("cost") else None,
        ),
        ("the same, worst step", lambda each: f"{each['cost']['imbalance']['max']:.4f}" if each.get("cost") else None),
        ("ranks wait", lambda each: percent(each["cost"]["waiting"]) if each.get("cost") else None),
    ]
    drawn = [charts(_batch_charts(number, name, each, plans)) for number, (name, each) in enumerate(plans)]
    return section("batches", title, paragraph(lead), *drawn, _beside(plans, rows), _measured_batches(plans))


def _ends(quantiles: Facts) -> str:
    return f"{quantiles['min']:,} to {quantiles['max']:,}"


def _beside(plans: Sequence[tuple[str, Facts]], rows: Iterable[tuple[str, Callable[[Facts], str | None]]]) -> str:
    """Return a table with a column for each plan; rows that no plan has are left out."""
    cells = [[name, *(value(facts) for _, facts in plans)] for name, value in rows]
    shown = [[cell if cell is not None else "-" for cell in row] for row in cells if any(row[1:])]
    return table(["plan", *(name for name, _ in plans)], shown)


def _titled(title: str, name: str, plans: Sequence[Any]) -> str:
    return f"{title}, {name}" if len(plans) > 1 else title


def _batch_charts(number: int, name: str, facts: Facts, plans: Sequence[Any]) -> Iterable[str]:
    sizes, what = facts["sizes"], "records in a batch"
    caption = "Short records come in large batches, long ones in small ones, so that all cost about the same."
    if facts["kind"] == "packs":
        what, caption = "records in a pack", "Each pack is a row of one length, whatever the number of records in it."
    elif facts["kind"] == "fixed":
        caption = "All batches have one size; the longest record of each decides what it costs."
    yield figure(
        f"sizes{number}",
        _titled("Sizes of batches", name, plans),
        caption,
        pictures.histogram_of_batches(sizes["edges"], sizes["batches"], what),
    )
    spread = facts.get("padded_of_batches", facts.get("tokens_of_batches"))
    if spread is not None:
        is_padded = "padded_of_batches" in facts
        yield figure(
            f"tokens{number}",
            _titled("Tokens of batches", name, plans),
            "Padding included. " * is_padded + "The narrower, the more even the memory and the time of steps.",
            pictures.histogram_of_batches(
                spread["edges"], spread["batches"], f"tokens in a batch{', padded' * is_padded}"
            ),
        )
    if facts.get("cost"):
        yield figure(
            f"ranks{number}",
            _titled("Cost of each rank", name, plans),
            "A column of dots is a step, a dot a rank. All ranks wait for the slowest, so dots should lie on the line.",
            pictures.strip_of_ranks(facts["cost"]["strip"]),
        )


def _measured_batches(plans: Sequence[tuple[str, Facts]]) -> str:
    some = [facts for _, facts in plans if facts["measured"]["batches"] < facts["batches"]]
    cost = (
        "Cost is the size of the padded tensor; of a pack, the sum of the squares of its lengths. Steps that are not "
        "full on all ranks are not measured."
    )
    if some:
        shown = " and ".join(f"{facts['measured']['batches']:,} of {facts['batches']:,} batches" for facts in some)
        spread = "" if all(facts["measured"]["is_whole"] for facts in some) else ", spread evenly over the epoch"
        cost = f"Sizes, padding and cost are measured on {shown}{spread}. {cost}"
    return paragraph(cost, "note")


def shuffle(title: str, facts: Facts) -> str:
    """How random an epoch is, from start to end."""
    plans = [(plan["title"], plan["shuffle"]) for plan in facts["plans"]]
    if not plans:
        return ""
    lead = (
        "In a good shuffle any part of an epoch has records from anywhere in the dataset, at its end as at its start. "
        "Chunked orders trade some of that for reads of neighbours."
    )
    rows: list[tuple[str, Callable[[Facts], str | None]]] = [
        (f"gaps at the {name}: distance to random", lambda each, name=name: _distance(each["gaps"][name]))  # type: ignore[misc]
        for name in ("start", "middle", "end")
    ]
    rows += [
        ("spread over the dataset, random = 1", lambda each: f"{each['density']['dispersion']:.3g}"),
        ("jump to the next record, random = 33.3 %", lambda each: percent(each["jump"]) if each["jump"] else None),
    ]
    drawn = [charts(_shuffle_charts(number, name, each, plans)) for number, (name, each) in enumerate(plans)]
    note = (
        "The distance is Kolmogorov's, between the gaps of the records that an epoch reads at about one time and the "
        "exponential distribution that a random order has; in brackets, what a random order stays below 19 times in 20."
    )
    sampled = [facts["measured"]["records"] for _, facts in plans if not facts["measured"]["is_whole"]]
    if sampled:
        shown = " and ".join(f"{count:,}" for count in sampled)
        note += f" The picture is of {shown} records, read in blocks that are spread evenly over the epoch."
    return section("shuffle", title, paragraph(lead), *drawn, _beside(plans, rows), paragraph(note, "note"))


def _distance(gaps: Facts) -> str | None:
    return f"{gaps['distance']:.3f} ({gaps['bound']:.3f})" if gaps["distance"] is not None else None


def _shuffle_charts(number: int, name: str, facts: Facts, plans: Sequence[Any]) -> Iterable[str]:
    density = facts["density"]
    if density["columns"] > 1:
        yield figure(
            f"density{number}",
            _titled("Where records come from", name, plans),
            "Each column is a part of the epoch, each row a part of the dataset; strong colour means many records. "
            "Grain without a pattern is good; stripes, blocks or a diagonal are not.",
            pictures.picture_of_density(density["cells"]),
        )
    found = {name: gaps for name, gaps in facts["gaps"].items() if gaps["curve"]}
    if found:
        yield figure(
            f"gaps{number}",
            _titled("Gaps between records", name, plans),
            "Of records that are read at about one time, sorted. Lines on the broad one are good; a line that falls at "
            "once and then stays has clumps of neighbours.",
            pictures.curve_of_gaps(found),
        )


def reads(title: str, facts: Facts) -> str:
    """What a step reads."""
    plans = [(plan["title"], plan["reads"]) for plan in facts["plans"] if plan["reads"] is not None]
    if not plans:
        return ""
    lead = (
        "Records are read through the page cache, 4 KiB at a time. Where the data fit into memory, pages cost nothing "
        "after the first epoch; where they do not, the disk delivers the pages of every step."
    )
    rows: list[tuple[str, Callable[[Facts], str | None]]] = [
        ("records in a step, all ranks", lambda each: number_of(each["mean"]["records"])),
        ("bytes of these", lambda each: size(each["mean"]["bytes"])),
        ("different pages", lambda each: number_of(round(each["mean"]["pages"]))),
        ("pages for a record", lambda each: f"{each['pages_of_a_record']:.2f}"),
        ("bytes of pages, records = 1", lambda each: f"{each['amplification']:.1f}"),
        ("sources in a step", lambda each: f"{number_of(each['mean']['sources'])} of {each['sources']:,}"),
        ("bytes of an epoch", lambda each: size(each["epoch_bytes"])),
    ]
    drawn = [
        figure(
            f"reads{number}",
            _titled("What steps read", name, plans),
            "The nearer the pages are to the records, the less a cold disk reads in vain. Chunked orders and larger "
            "records bring them together.",
            pictures.bars_of_bytes(found["steps"], PAGE),
        )
        for number, (name, found) in enumerate(plans)
    ]
    note = f"Of {counted(plans[0][1]['measured']['steps'], 'step')}, spread evenly over the epoch."
    return section("reads", title, paragraph(lead), charts(drawn), _beside(plans, rows), paragraph(note, "note"))


def samples(title: str, facts: Facts) -> str:
    """Some samples."""
    found = facts["samples"]
    if found is None:
        return ""
    parts = [paragraph(f"{found['tried']:,} records at random were decoded; these are some of them, and the extremes.")]
    for name, shown in _GROUPS.items():
        group = found.get(name, [])
        if group:
            parts.append(heading(shown))
            parts += [_sample(each, is_open=number == 0 and name == "random") for number, each in enumerate(group)]
    return section("samples", title, *parts)


def _sample(facts: Facts, *, is_open: bool) -> str:
    length = f"{counted(facts['length'], 'token')}, " if "length" in facts else ""
    lines = ([facts["error"], ""] if "error" in facts else []) + facts.get("lines", [])
    remark = f"{length}{counted(facts['bytes'], 'byte')} · {facts['place']}"
    return folded(f"Record {facts['position']:,}", remark, lines, is_open=is_open)


def loader(title: str, facts: Facts) -> str:
    """How long a loader without a trainer takes for its batches."""
    found = facts.get("loader")
    if found is None:
        return ""
    lead = (
        f"Each loader read batches ({found['plan']}) for {found['seconds']:g} seconds on {found['cores']} cores, and "
        "threw them away: cold, after the pages of the sources were dropped from memory, and warm."
    )
    head = ["loader", "pass", "records/s", "wait p50, ms", "wait p99, ms", "own memory"]
    rows = [
        [
            name_of(way),
            which,
            f"{way[which]['records_per_second']:,.0f}",
            f"{way[which]['wait_p50'] * 1e3:.3f}",
            f"{way[which]['wait_p99'] * 1e3:.3f}",
            size(way[which]["memory"]) if way[which]["memory"] is not None else "-",
        ]
        for way in found["ways"]
        for which in ("cold", "warm")
        if way[which] is not None
    ]
    chart = figure(
        "loader",
        "Waits for a batch",
        "The lower the better; a trainer whose step takes longer than the time between batches does not wait. Dots are "
        "medians, lines reach to the 99th percentile.",
        pictures.waits_of_loaders([name_of(way) for way in found["ways"]], found["ways"]),
    )
    chosen = paragraph(found["recommendation"]["text"])
    return section("loader", title, paragraph(lead), charts([chart]), table(head, rows, texts=2), chosen)


def training(title: str, facts: Facts) -> str:
    """How long a training run waited for its data."""
    found = facts.get("training")
    if found is None:
        return ""
    lead = (
        f"The ranks of the run waited {percent(found['waiting'])} of their time for batches. Where one rank waits more "
        "than others, look at its machine; where all do, add workers or look at the disk."
    )
    head = ["rank", "passes", "batches", "seconds", "waited", "p50, ms", "p99, ms", "longest, s", "stalls"]
    rows = [
        [
            f"{each['rank']:,}",
            f"{each['passes']:,}",
            number_of(each["batches"]),
            f"{each['seconds']:,.1f}",
            percent(each["waiting"]),
            f"{each['wait_p50'] * 1e3:.2f}",
            f"{each['wait_p99'] * 1e3:.2f}",
            f"{each['wait_max']:.2f}",
            number_of(each["stalls"]),
        ]
        for each in found["ranks"]
    ]
    chart = figure(
        "training",
        "Share of the time that each rank waited",
        "Good runs wait for less than 2 % of their time.",
        pictures.bars_of_ranks([each["waiting"] for each in found["ranks"]]),
    )
    note = "Percentiles are the worst of the passes of a rank."
    return section("training", title, paragraph(lead), charts([chart]), table(head, rows), paragraph(note, "note"))
