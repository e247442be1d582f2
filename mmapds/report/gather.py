"""All facts of a report, section by section: plain dicts that JSON can hold."""

import os
from collections.abc import Iterable, Sequence
from typing import Any

from .. import __version__
from ..dataset.dataset import Dataset
from ..dataset.decode import Decoder
from ..dataset.opening import open as open_dataset
from ..dataset.origin import expand_indexed, open_indexes
from ..dataset.saving import unfolded
from ..errors import Error, OrderError
from ..index.lengths import read_lengths
from ..storage.index_file import Index
from ..storage.roots import Roots
from ..storage.runs import LengthOrder
from ..storage.sources import StrPath, listed
from .batches import batch_facts, random_padding
from .blocks import read_blocks
from .coverage import coverage_facts, record_sizes
from .lengths import length_facts
from .plans import EpochPlan, Wanted, plan_epoch
from .reads import read_facts
from .samples import sample_facts
from .shuffle import shuffle_facts

Facts = dict[str, Any]


class Subject:
    """What a report is on: a dataset, and the indexes behind it.

    Its sources are compared by the section on what is covered, so stale ones are told of, and never an error.
    """

    def __init__(self, source_or_index: StrPath | Iterable[StrPath], decode: str | Decoder | None, roots: Any) -> None:
        self.patterns = [os.fspath(pattern) for pattern in listed(source_or_index)]
        paths = expand_indexed(self.patterns)
        self.roots = Roots(roots, paths)
        self.indexes: list[Index] = unfolded(open_indexes(paths, self.patterns, self.roots, "mmap"))[0]
        self.dataset: Dataset = open_dataset(self.patterns, decode=decode, check="none", roots=roots)
        self.by_length = self._by_length()

    def _by_length(self) -> LengthOrder | None:
        """Return lengths and their order; None where there are none that samplers take."""
        if "length" not in self.dataset.columns or not len(self.dataset):
            return None
        return read_lengths(self.dataset, None, None) if self.dataset.lengths.dtype.kind == "u" else None


def gather(subject: Subject, wanted: Sequence[Wanted], *, samples: bool) -> Facts:
    """Return the facts of all sections that need neither a loader nor a training run.

    Args:
      wanted: plans to look at; the second one stands beside the first.
      samples: False reads no sample, so that the report shows none.
    Raises:
      OrderError, ColumnError: a plan cannot be made of the dataset.
    """
    dataset = subject.dataset
    coverage = coverage_facts(subject.indexes, len(dataset))
    facts: Facts = {
        "mmapds": __version__,
        "title": ", ".join(os.path.basename(pattern) or pattern for pattern in subject.patterns[:3]),
        "fingerprint": dataset.fingerprint,
        "coverage": coverage,
        "lengths": _lengths(subject, wanted) if len(dataset) else None,
        "plans": [_plan(subject, coverage, each) for each in wanted] if len(dataset) else [],
        "loader": None,
        "training": None,
        "samples": None,
    }
    if samples and len(dataset) and coverage["is_current"]:
        facts["samples"] = sample_facts(dataset, subject.by_length, wanted[0].seed)
    return facts


def _lengths(subject: Subject, wanted: Sequence[Wanted]) -> Facts:
    chosen = [limit for each in wanted for limit in (each.max_tokens, each.pack) if limit is not None]
    if subject.by_length is None:
        return length_facts(*record_sizes(subject.indexes), "bytes", [])
    return length_facts(subject.by_length.values[::-1], subject.by_length.counts[::-1], "tokens", chosen)


def _plan(subject: Subject, coverage: Facts, wanted: Wanted) -> Facts:
    plan = plan_epoch(subject.dataset, wanted)
    read = read_blocks(plan)
    facts: Facts = {
        "title": wanted.title,
        "options": wanted._asdict(),
        "batches": batch_facts(plan, read),
        "shuffle": shuffle_facts(plan, read, len(subject.dataset)),
        "reads": None,
    }
    if plan.selection is not None and plan.kind != "packs":
        planned, size = plan.selection, plan.records / len(plan.batches)
        facts["batches"]["random_padding"] = random_padding(planned.values[::-1], planned.counts[::-1], size)
    if coverage["is_current"]:
        facts["reads"] = _reads(subject, coverage, plan, read)
    return facts


def _reads(subject: Subject, coverage: Facts, plan: EpochPlan, read: Any) -> Facts | None:
    record_bytes = coverage["bytes"] / max(coverage["records_of_indexes"], 1)
    dataset = subject.dataset
    try:
        return read_facts(plan, read, dataset.where, dataset.source_starts, record_bytes)
    except OrderError:
        raise
    except Error:  # a source changed since it was compared
        return None
