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

    def rate(trial: dict[str, Any]) -> float:
        found: float = trial[which]["records_per_second"]
        return found

    best = max(loaders, key=rate)
    near = [trial for trial in loaders if rate(trial) >= NEAR * rate(best)]
    # Processes take memory, and what they make is sent: so any number of threads comes first. A thread reads while the
    # trainer computes, which a trial without a trainer does not see: so one is better than none.
    chosen = min(near, key=lambda trial: (trial["kind"] == "processes", trial["workers"] == 0, trial["workers"]))
    share = rate(chosen) / rate(best) if rate(best) else 1.0
    return {
        "kind": chosen["kind"],
        "workers": chosen["workers"],
        "pass": which,
        "share": share,
        "best": {"kind": best["kind"], "workers": best["workers"]},
        "text": _text(chosen, best, share, which),
    }


def name_of(trial: dict[str, Any]) -> str:
    """Return what people call a way to read."""
    kind, workers = trial["kind"], trial["workers"]
    if kind in ("single", "batched"):
        return {"single": "ds[i]", "batched": "ds.take(batch)"}[kind]
    if workers == 0:
        return "num_workers=0"
    return f"{workers} {kind if workers > 1 else kind.removesuffix('es' if kind == 'processes' else 's')}"


def _text(chosen: dict[str, Any], best: dict[str, Any], share: float, which: str) -> str:
    arguments = f"num_workers={chosen['workers']}" + ', workers="processes"' * (chosen["kind"] == "processes")
    wait = chosen[which]["wait_p50"]
    text = f"mmapds.DataLoader(..., {arguments}) delivers {chosen[which]['records_per_second']:,.0f} records/s {which}"
    if chosen is not best:
        why = "reads while a trainer computes" if best["workers"] == 0 else "needs less"
        text += f", {share:.0%} of {name_of(best)}, and {why}"
    if chosen["workers"] == 0:
        return f"{text}; each step waits about {wait * 1e3:.3g} ms for its batch."
    return f"{text}; a step of more than {1e3 / _batches(chosen[which]):.3g} ms does not wait, as a rule."


def _batches(found: dict[str, Any]) -> float:
    """Return the batches of a pass in a second."""
    return max(found["batches"] / found["seconds"] if found["seconds"] else 0.0, 1e-9)
