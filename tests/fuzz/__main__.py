"""Run the fuzz targets, by libFuzzer where clang has it, else by fuzz_main.c; `make fuzz` does so.

usage: python -m tests.fuzz [--seconds N] [--runs N] [--largest BYTES] [--jobs N] [--seed N] [TARGET...]
"""

import argparse
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tests.support.files import ROOT
from tests.support.fuzzing import CORPUS, TARGETS, build_core, build_target, libfuzzer

BUILD = ROOT / "build" / "fuzz"
# Freed memory is kept poisoned up to this size: more than an input uses, and little enough to stay in the caches.
ENVIRONMENT = {"ASAN_OPTIONS": "quarantine_size_mb=32", **os.environ}


def fuzz(program, given):
    """Run one target and print a line about it; return whether it found nothing."""
    target = program.name
    made, findings = BUILD / "corpus" / target, BUILD / "findings"
    made.mkdir(parents=True, exist_ok=True)
    findings.mkdir(parents=True, exist_ok=True)
    options = [f"-seed={given.seed}", f"-max_len={given.largest}", f"-artifact_prefix={findings}/{target}-"]
    options += [f"-runs={given.runs}"] if given.runs else []
    options += [f"-max_total_time={given.seconds}"] if given.seconds else []
    log = BUILD / f"{target}.log"
    begin = time.monotonic()
    with open(log, "w") as file:
        command = [program, *options, "-print_final_stats=1", "-timeout=60", made, CORPUS / target]
        status = subprocess.run(command, stdout=file, stderr=file, env=ENVIRONMENT, check=False).returncode
    elapsed = time.monotonic() - begin
    text = log.read_text(errors="replace")
    counted = re.findall(r"number_of_executed_units: (\d+)", text)
    runs = int(counted[-1]) if counted else 0
    line = f"{target}: {runs:,} executions in {elapsed:.0f} s"
    if edges := re.findall(r"cov: (\d+)", text):
        line += f", {edges[-1]} edges"
    if status:
        line += f"; FOUND SOMETHING: see {log.relative_to(ROOT)}; the input, {findings.relative_to(ROOT)}/{target}-*, "
        line += f"belongs into tests/fuzz/corpus/{target}"
    print(line, flush=True)
    return status == 0


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; default: all")
    parser.add_argument("--seconds", type=int, help="of each target (default: 60, unless there are --runs)")
    parser.add_argument("--runs", type=int, help="executions of each target")
    parser.add_argument("--largest", type=int, default=4096, help="bytes of an input (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="targets at a time (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**31, help="default: another one each time")
    given = parser.parse_args()
    if unknown := set(given.targets) - set(TARGETS):
        parser.error(f"TARGET: expected some of {', '.join(TARGETS)}, found {', '.join(sorted(unknown))}")
    if not given.runs and not given.seconds:
        given.seconds = 60
    clang = libfuzzer()
    folder = BUILD / ("libfuzzer" if clang else "driver")
    folder.mkdir(parents=True, exist_ok=True)
    core = build_core(folder, clang)
    print(f"seed {given.seed}, {'libFuzzer' if clang else 'fuzz_main.c, as no clang here has libFuzzer'}", flush=True)

    def build_and_fuzz(target):
        return fuzz(build_target(folder, target, core, clang), given)

    with ThreadPoolExecutor(given.jobs) as pool:
        return 0 if all([*pool.map(build_and_fuzz, given.targets or TARGETS)]) else 1


if __name__ == "__main__":
    sys.exit(main())
