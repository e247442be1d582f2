"""Measure mmapds and its rivals: `python -m bench.rivals`, in the environment that `make rivals` makes."""

import argparse
import json
import os
import tempfile
from pathlib import Path

from bench.support.data import DATA
from bench.support.results import described

from . import pages, planners, samplers, stores
from .contests import Plan, planners_facts, samplers_facts, stores_facts

CONTESTS = ("stores", "samplers", "budgets", "packers")


def parsed():
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m bench.rivals", description=__doc__)
    parser.add_argument("--records", type=float, default=1e6, help="about how many a source of stores has")
    parser.add_argument("--largest", type=float, default=1e9, help="the largest epoch of samplers and planners")
    parser.add_argument("--rounds", type=int, default=3, help="how often all are measured in turn")
    parser.add_argument("--seconds", type=float, default=1, help="how long a way to read is timed")
    parser.add_argument("--contests", nargs="+", choices=CONTESTS, default=CONTESTS)
    parser.add_argument("--rivals", nargs="+", metavar="NAME", help="only these modules, and ours")
    parser.add_argument(
        "--out", type=Path, default=pages.MEASURED, help="where the numbers go; those of other contests stay"
    )
    parser.add_argument("--render", action="store_true", help="write tables and plots of numbers that are there")
    return parser.parse_args()


def measured(options, folder):
    """Return the numbers of all contests."""
    plan = Plan(folder, int(options.records), int(options.largest), options.rounds, options.seconds)

    def chosen(names):
        return [name for name in names if options.rivals is None or name in (names[0], *options.rivals)]

    work = {
        "stores": lambda: stores_facts(plan, chosen(stores.NAMES)),
        "samplers": lambda: samplers_facts(plan, chosen(samplers.NAMES)),
        "budgets": lambda: planners_facts(plan, chosen(planners.BUDGETS), False),
        "packers": lambda: planners_facts(plan, chosen(planners.PACKERS), True),
    }
    facts = {}
    for name in options.contests:
        before = os.getloadavg()[0]
        facts[name] = work[name]()
        after = os.getloadavg()[0]
        facts[name]["about"] = f"{described()} The load of the machine was {before:.1f} before, and {after:.1f} after."
    return facts


def main():
    """Measure, keep the numbers, and write the pages."""
    options = parsed()
    if not options.render:
        DATA.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="rivals-", dir=DATA) as folder:
            facts = measured(options, Path(folder))
        kept = json.loads(options.out.read_text()) if options.out.exists() else {}
        options.out.write_text(json.dumps(kept | facts, indent=1) + "\n")
    if options.out == pages.MEASURED:
        pages.write(json.loads(options.out.read_text()))


if __name__ == "__main__":
    main()
