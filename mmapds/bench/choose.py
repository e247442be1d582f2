"""Which loader to use, by what was measured."""

from collections.abc import Sequence
from typing import Any

NEAR = 0.9
"""A way that delivers this share of the best one is as good, if it needs less."""


def recommend(trials: Sequence[dict[str, Any]], *, fits: bool) -> dict[str, Any]:
    """Return the loader that needs least of those that deliver within 10 % of the best.

    Args:
      trials: what was measured, as `bench` returns it; those that are not of loaders are passed over.
      fits: whether the data fit into memory, so that warm passes count; else cold ones, if they were measured.
    Returns:
      A dict: `kind` and `workers`; `share` of the records a second that the best loader delivers, in `pass`, "cold" or
      "warm"; `best`, the kind and the workers of that one; `text`, which says so.
    """
    loaders = [trial for trial in trials if trial["kind"] in ("threads", "processes")]
    which = "warm" if fits or any(trial["cold"] is None for trial in loaders) else "cold"
    rates = [trial[which]["records_per_second"] for trial in loaders]
    best = loaders[rates.index(max(rates))]
    near = [trial for trial, rate in zip(loaders, rates, strict=True) if rate >= NEAR * max(rates)]
    # Processes take memory, and what they make is sent: so any number of threads comes first. A thread reads while the
    # trainer computes, which a trial without a trainer does not see: so one is better than none.
    chosen = min(near, key=lambda trial: (trial["kind"] == "processes", trial["workers"] == 0, trial["workers"]))
    found, rate = chosen[which], chosen[which]["records_per_second"]
    share = rate / max(rates) if max(rates) else 1.0
    arguments = f"num_workers={chosen['workers']}" + ', workers="processes"' * (chosen["kind"] == "processes")
    text = f"mmapds.DataLoader(..., {arguments}) delivers {rate:,.0f} records/s {which}"
    if chosen is not best:
        why = "reads while a trainer computes" if best["workers"] == 0 else "needs less"
        text += f", {share:.0%} of {name_of(best)}, and {why}"
    if chosen["workers"] == 0:
        text += f"; each step waits about {found['wait_p50'] * 1e3:.3g} ms for its batch."
    else:
        step = 1e3 * found["seconds"] / max(found["batches"], 1)
        text += f"; a step of more than {step:.3g} ms does not wait, as a rule."
    own, other = ({"kind": each["kind"], "workers": each["workers"]} for each in (chosen, best))
    return {**own, "pass": which, "share": share, "best": other, "text": text}


def name_of(trial: dict[str, Any]) -> str:
    """Return what people call a way to read."""
    kind, workers = trial["kind"], trial["workers"]
    if kind in ("single", "batched"):
        return {"single": "ds[i]", "batched": "ds.take(batch)"}[kind]
    if workers == 0:
        return "num_workers=0"
    return f"{workers} {kind if workers > 1 else kind.removesuffix('es' if kind == 'processes' else 's')}"
