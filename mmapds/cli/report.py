"""`mmapds report`."""

import argparse
import json

from ..dataset.decode import check_name
from ..errors import counted, printable
from ..report import report
from ..report.plans import Wanted, wanted_plans
from . import add_common, checking_options


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Add what a report takes."""
    add_common(parser, "max-tokens", "decode", "root", "json", "force", "quiet")
    parser.add_argument("-o", "--out", metavar="FILE", help="the page; default: report.html, without --json")
    parser.add_argument("--pack", type=int, metavar="N", help="plan packs of this many tokens")
    parser.add_argument("--batch-size", type=int, metavar="N", help="batches of a size; the default, with 32")
    parser.add_argument("--chunk-size", type=int, metavar="N", help="shuffle chunks of neighbours, not all records")
    parser.add_argument("--ranks", type=int, default=8, metavar="N", help="processes that share an epoch; default: 8")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the order; default: 0")
    parser.add_argument(
        "--compare", action="append", default=[], metavar="PLAN", help="another plan: pack=8192,ranks=16"
    )
    parser.add_argument("--loader", action="store_true", help="measure loaders too, as bench does: a minute or two")
    parser.add_argument("--waits", action="append", default=[], metavar="FILE", help="JSON of what ranks waited")
    parser.add_argument("--no-samples", action="store_true", help="show no sample, and read none")
    parser.set_defaults(work=_report)


def _report(options: argparse.Namespace) -> None:
    plan = {name: getattr(options, name) for name in Wanted._fields}
    with checking_options():
        wanted_plans(options.compare, **plan)
        check_name(options.decode)
    out = options.out or (None if options.json else "report.html")
    facts = report(
        options.sources,
        out,
        **plan,
        compare=options.compare,
        samples=not options.no_samples,
        loader=options.loader,
        waits=options.waits,
        decode=options.decode,
        roots=options.root,
        force=options.force,
    )
    if options.json:
        print(json.dumps(facts, indent=1))
    elif not options.quiet:
        plans = ", ".join(plan["title"] for plan in facts["plans"]) or "no plan"
        records = counted(facts["coverage"]["records"], "record")
        print(printable(f"{out}: {facts['title']}, {records}; {plans}"))
