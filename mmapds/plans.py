"""Plans: how an epoch is cut into batches under a budget. Made once from the lengths, read batch by batch.

A plan numbers the batches of an epoch by position, as an order does records; a reader of an epoch tells what is in
them.
"""

import os
from contextlib import suppress
from hashlib import blake2b
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from . import _native, lengths
from .errors import OrderError
from .orders import Order
from .parallel import alone
from .permutation import Permutation

Int64s = NDArray[np.int64]
Uint64s = NDArray[np.uint64]

VERSION = 1
"""Raised when a plan changes for the same arguments, so that an old state is refused and not misread."""

_WORD = 2**64 - 1
_GROUPS = 2  # stream of the permutation of groups; records and chunks have 0 and 1
_MIXED = 1 << 32  # and of the first batches of a window plan that are mixed
_ENOUGH = 8  # batches in which the records of a bucket can change places
_TABLE = 1 << 20  # lengths below this are looked up in a table
_CACHE = b"\x89mmapds length order 1\r\n"  # begins a cache
_CHUNK = 65_536  # positions of an order that are streamed at a time


class LengthOrder(NamedTuple):
    """Records in order of their length, and how many have each."""

    order: NDArray[Any]
    """u32 or u64, shape (records,): the longest first, equally long ones in ascending order."""
    values: Uint64s
    """The lengths there are, falling."""
    counts: Uint64s
    """How many records have each."""

    @classmethod
    def of(cls, values: NDArray[Any], cache: str | None = None) -> "LengthOrder":
        """Sort lengths, given as u32 or u64; with a path, only where no process of this machine has done it before.

        A cache is made by one process while others wait for it, and is mapped by all. One that is of other lengths is
        replaced.
        """
        if cache is None:
            return cls._sorted(values)
        from xxhash import xxh3_64

        mark = np.array([len(values), xxh3_64(values.data).intdigest()], np.uint64)
        try:
            with alone(os.path.dirname(cache)):
                found = cls._cached(cache, mark)
                if found is None:
                    cls._sorted(values)._save(cache, mark)
                    found = cls._cached(cache, mark)
        except OSError as error:
            raise OrderError(f"order_cache = {cache!r} cannot be written: {error.strerror}") from None
        assert found is not None
        return found

    def _save(self, path: str, mark: Uint64s) -> None:
        temporary = f"{path}.{os.urandom(4).hex()}.tmp"
        try:
            with open(temporary, "xb") as file:
                file.write(_CACHE)
                for array in (mark, self.values, self.counts, self.order):
                    np.save(file, array)
            os.replace(temporary, path)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise

    @classmethod
    def _sorted(cls, values: NDArray[Any]) -> "LengthOrder":
        width = lengths.order_bytes(len(values))
        order = np.empty(len(values), f"<u{width}")
        wide = len(values) and int(values.max()) >= 1 << lengths.AT_ONCE
        spare = np.empty(len(values) if wide else 0, order.dtype)
        found, counts = lengths.sort(values, values.itemsize, order, width, spare)
        return cls(order, np.frombuffer(found, np.uint64), np.frombuffer(counts, np.uint64))

    @classmethod
    def _cached(cls, path: str, mark: Uint64s) -> "LengthOrder | None":
        """What a cache holds; None if there is none, or one of other lengths, or a damaged one.

        Raises:
          OrderError: the file is something else, which is not to be overwritten.
        """
        try:
            with open(path, "rb") as file:
                if file.read(len(_CACHE)) != _CACHE:
                    raise OrderError(f"order_cache = {path!r} is a file that is no cache; expected one, or a new name")
                found, values, counts = np.load(file), np.load(file), np.load(file)
                header = np.lib.format.read_magic(file), np.lib.format.read_array_header_1_0(file)
                shape, _, dtype = header[1]
                order = np.memmap(path, dtype, "r", file.tell(), shape)
        except FileNotFoundError:
            return None
        except OrderError:
            raise
        except Exception:  # numpy's reader raises almost anything for a damaged header
            return None
        whole = order.dtype.kind == "u" and order.shape == (int(mark[0]),) and values.shape == counts.shape
        whole = whole and values.dtype == counts.dtype == np.uint64 and int(counts.sum()) == int(mark[0])
        return cls(order, values, counts) if whole and np.array_equal(found, mark) else None


class Budget(NamedTuple):
    """What a batch may hold."""

    max_tokens: int
    """Most that the longest length times the number of records may be, in the unit of the lengths."""
    largest: int
    """Most records."""
    multiple: int
    """Sizes of at least this many records are multiples of it."""
    quadratic: int
    """A record of length L costs L + L^2 / quadratic; 0: L."""

    def cost(self, length: int) -> int:
        """What one record costs."""
        return length + (-(-length * length // self.quadratic) if self.quadratic else 0)


class Selection(NamedTuple):
    """The part of a length order that is planned: its longest and shortest records may be left out."""

    by_length: LengthOrder
    first: int
    """Records of the order that come before."""
    kept: slice
    """Which of the lengths there are."""

    @property
    def values(self) -> Uint64s:
        """Lengths, falling."""
        return self.by_length.values[self.kept]

    @property
    def counts(self) -> Uint64s:
        """How many records have each."""
        return self.by_length.counts[self.kept]

    @property
    def records(self) -> int:
        """How many there are."""
        return int(self.counts.sum())

    @property
    def starts(self) -> Int64s:
        """Rank of the first record of each length, from the first that is planned on; and the number of records."""
        return np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int64)


class Reader(Protocol):
    """Reads the batches of one epoch."""

    def read(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        """The records of the batches at ascending positions, one after another; and where each batch ends."""


class Plan:
    """What plans have in common: an order of batches (see `mmapds.orders.Order`)."""

    def __init__(self, selection: Selection, records: int, budget: Budget, wanted: int, close: bool, seed: int) -> None:
        self.records = records
        """In the dataset: record numbers are below."""
        self.selection = selection
        self.seed = seed
        self._budget = budget
        values, counts = (np.ascontiguousarray(each) for each in (selection.values, selection.counts))
        found = _native.plan_buckets(budget, values, counts, wanted, close)
        self.buckets = np.frombuffer(found, np.uint64).reshape(-1, 4)
        """Rows of (first rank, first batch, batches, size)."""

    def at(self, epoch: int, positions: Int64s) -> Int64s:  # noqa: ARG002 - the readers know about epochs
        """Return the positions: what stands at one is known to a reader alone."""
        return positions

    def describe(self) -> dict[str, Any]:
        """Return what tells this plan from others."""
        digest = blake2b(self.selection.values.tobytes() + self.selection.counts.tobytes(), digest_size=8).hexdigest()
        return {
            "version": VERSION,
            "n": self.records,
            "lengths": digest,
            "planned": [self.selection.first, self.selection.records],
            **self._budget._asdict(),
            "seed": self.seed,
        }


class BucketPlan(Plan):
    """Batches of records that are alike in length, the same ones in number and size every epoch, with other mates.

    Records in order of length are cut into buckets of whole batches. An epoch permutes the records of each bucket, and
    the groups of neighbouring batches; nothing is kept but the buckets.

    Args:
      values: u32 or u64, shape (records,): the lengths.
      group_size: batches that stay together, to be the batches of one step on all ranks.
      shuffle: False reads batches from the longest to the shortest, and the same ones every epoch.
    """

    def __init__(
        self,
        selection: Selection,
        values: NDArray[Any],
        budget: Budget,
        *,
        group_size: int,
        seed: int,
        shuffle: bool,
    ) -> None:
        super().__init__(selection, len(values), budget, _ENOUGH, True, seed)
        self._lengths = values
        self.group_size = group_size
        self._shuffle = shuffle
        self._batches = int(self.buckets[-1, 1] + self.buckets[-1, 2])
        self._groups = self._batches // group_size  # whole ones

    def __len__(self) -> int:
        return self._batches

    def describe(self) -> dict[str, Any]:
        """Return what tells this plan from others."""
        what = {"order": "token budget, buckets", "shuffle": self._shuffle, "group_size": self.group_size}
        return {**what, **super().describe()}

    def reader(self, epoch: int) -> "_BucketReader":
        """Return a reader of an epoch, which takes positions in any order."""
        return _BucketReader(self, epoch)

    def batches_at(self, epoch: int, positions: Int64s) -> Int64s:
        """Return which batch of the plan stands at each position."""
        if not self._shuffle:
            return positions
        groups, places = np.divmod(positions, self.group_size)
        whole = groups < self._groups
        if self._groups:
            groups[whole] = self._permutation(epoch)[groups[whole]]
        # In its group every batch takes turns, so that no rank has the longest all the time.
        sizes = np.where(whole, self.group_size, max(self._batches % self.group_size, 1))
        batches: Int64s = groups * self.group_size + (places + self._turns(epoch, groups)) % sizes
        return batches

    def positions_of_batches(self, epoch: int, batches: Int64s) -> Int64s:
        """Return where batches of the plan stand."""
        if not self._shuffle:
            return batches
        groups, places = np.divmod(batches, self.group_size)
        whole = groups < self._groups
        sizes = np.where(whole, self.group_size, max(self._batches % self.group_size, 1))
        places = (places - self._turns(epoch, groups)) % sizes
        if self._groups:
            groups[whole] = self._permutation(epoch).inverse(groups[whole])
        positions: Int64s = groups * self.group_size + places
        return positions

    def positions_of(self, epoch: int, records: Int64s) -> Int64s:
        """Return where the batches stand that hold nothing but `records`, which are ascending."""
        ranks = self._ranks(records)
        batches = np.empty_like(ranks)
        self.native(epoch).find(ranks, batches)
        found, counts = np.unique(batches, return_counts=True)
        return self.positions_of_batches(epoch, found[counts == self.sizes(found)])

    def _ranks(self, records: Int64s) -> Int64s:
        """Where records stand in the planned part of the length order, those that do: a search for each length."""
        selection, starts = self.selection, self.selection.starts
        lengths = self._lengths[records]
        ranks = [np.empty(0, np.int64)]
        for length in np.unique(lengths):
            value = int(np.count_nonzero(selection.values > length))
            if value == len(selection.values) or selection.values[value] != length:
                continue
            first = selection.first + int(starts[value])
            run = selection.by_length.order[first : first + int(selection.counts[value])]
            places = np.searchsorted(run, records[lengths == length])
            ranks.append(starts[value] + places[places < len(run)])
        return np.concatenate(ranks).astype(np.int64)

    def _permutation(self, epoch: int) -> Permutation:
        return Permutation(self._groups, self.seed, epoch, stream=_GROUPS)

    def _turns(self, epoch: int, groups: Int64s) -> Int64s:
        turns = np.empty_like(groups)
        _native.draw(self.group_size, self.seed & _WORD, epoch & _WORD, np.ascontiguousarray(groups), turns)
        return turns

    def sizes(self, batches: Int64s) -> Int64s:
        """Records in batches of the plan."""
        firsts = self.buckets[:, 1].astype(np.int64)
        sizes: Int64s = self.buckets[np.searchsorted(firsts, batches, side="right") - 1, 3].astype(np.int64)
        return sizes

    def native(self, epoch: int) -> _native.Plan:
        """One epoch of the plan, as the core reads it."""
        order = self.selection.by_length.order
        return _native.Plan(
            buckets=self.buckets,
            order=order,
            order_width=order.itemsize,
            first_rank=self.selection.first,
            records=self.records,
            seed=self.seed & _WORD,
            epoch=epoch & _WORD,
            shuffle=self._shuffle,
        )


class _BucketReader:
    def __init__(self, plan: BucketPlan, epoch: int) -> None:
        self._plan = plan
        self._epoch = epoch
        self._native = plan.native(epoch)

    def read(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        batches = np.ascontiguousarray(self._plan.batches_at(self._epoch, positions.copy()))
        out = np.empty(int(self._plan.sizes(batches).sum()), np.int64)
        ends = np.empty_like(batches)
        self._native.batches(batches, out, ends)
        return out, ends


class WindowPlan(Plan):
    """Batches of records that come near one another in an order: for chunked orders, and for fully random mates.

    Lengths are cut into buckets so wide that a record waits for its batch some `sort_window` positions of the order, in
    the mean. As the order goes by, every record joins the open batch of its bucket, and a batch is ready when it is
    full. That is what sorting windows and cutting them comes to, without their edges: every epoch has as many batches,
    whatever its order, since a bucket always has as many records.

    A reader goes through the order from its beginning, at some 10^7 records a second, to the batch that is asked for.

    Args:
      values: u32 or u64, shape (records,): the lengths.
      order: a bijection of the records.
      shuffle: False gives batches as they become ready, and not in keyed order, some at a time.
    """

    def __init__(
        self,
        selection: Selection,
        values: NDArray[Any],
        budget: Budget,
        *,
        order: Order,
        sort_window: int,
        seed: int,
        shuffle: bool,
    ) -> None:
        # A bucket with this many batches has its records 2 * sort_window apart from one batch to the next. With one,
        # its records would have the same mates in every epoch.
        wanted = min(max(selection.records // (2 * sort_window), 2), 2**32)
        super().__init__(selection, len(values), budget, wanted, False, seed)
        self.lengths = values
        self.order = order
        self.shuffle = shuffle
        self._sort_window = sort_window
        buckets = self.buckets.copy()
        if len(buckets) > 1 and buckets[-1, 2] == 1 and buckets[-1, 3] <= buckets[-2, 3]:
            # Records that make no whole batch: one more batch of the bucket before, though not a full one.
            buckets[-2, 2] += 1
            buckets = buckets[:-1]
        self.buckets = buckets
        self._batches = int(buckets[-1, 1] + buckets[-1, 2])
        self.tables = _Tables.of(self)

    def __len__(self) -> int:
        return self._batches

    def describe(self) -> dict[str, Any]:
        """Return what tells this plan from others."""
        what = {"order": "token budget, windows", "sort_window": self._sort_window, "shuffle": self.shuffle}
        return {**what, "of": self.order.describe(), **super().describe()}

    def reader(self, epoch: int) -> "_WindowReader":
        """Return a reader of an epoch, which takes positions in ascending order, or begins again."""
        return _WindowReader(self, epoch)

    def positions_of(self, epoch: int, records: Int64s) -> Int64s:
        """Return where the batches stand that hold nothing but `records`."""
        found = []
        reader = self.reader(epoch)
        for begin in range(0, len(self), _CHUNK):
            out, ends = reader.read(np.arange(begin, min(begin + _CHUNK, len(self)), dtype=np.int64))
            begins = np.concatenate([[0], ends[:-1]])
            wholly = np.logical_and.reduceat(np.isin(out, records), begins)
            found.append(begin + np.flatnonzero(wholly))
        return np.concatenate(found).astype(np.int64)


class _Tables(NamedTuple):
    """From a record's length to its bucket: see mds_stream in csrc/mmapds.h."""

    values: Uint64s
    first_buckets: NDArray[np.uint32]
    splits: Uint64s
    table: NDArray[np.uint32]

    @classmethod
    def of(cls, plan: WindowPlan) -> "_Tables":
        selection, buckets = plan.selection, plan.buckets
        values, starts = np.ascontiguousarray(selection.values), selection.starts
        firsts = buckets[:, 0].astype(np.int64)
        first_buckets = np.searchsorted(firsts, starts[:-1], side="right") - 1
        splits = np.full(len(values), _WORD, np.uint64)
        runs = np.searchsorted(starts, firsts, side="right") - 1
        within = firsts > starts[runs]
        splits[runs[within]] = selection.by_length.order[selection.first + firsts[within]]
        table = np.full(min(int(values[0]) + 1, _TABLE), 2**32 - 1, np.uint32)
        short = values < len(table)
        table[values[short]] = np.flatnonzero(short)
        return cls(values, first_buckets.astype(np.uint32), splits, table)


class _WindowReader:
    """Streams the order, some batches at a time, and gives those in keyed order.

    All buckets begin empty, so that they would fill up in step, the small ones first: lengths would rise and fall.
    """

    def __init__(self, plan: WindowPlan, epoch: int) -> None:
        self._plan = plan
        self._epoch = epoch
        self._together = 4 * len(plan.buckets)  # batches that are mixed: about four of each bucket
        self._begin()

    def _begin(self) -> None:
        plan = self._plan
        self._block = -1  # the number of the batches at hand
        self._batches: list[Int64s] = []
        self._position = 0  # in the order
        self._records = np.empty(0, np.int64)  # of the order, not yet streamed
        self._native = _native.Stream(
            buckets=plan.buckets,
            ranks=plan.selection.records,
            lengths=plan.lengths,
            width=plan.lengths.itemsize,
            **plan.tables._asdict(),
        )

    def read(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        blocks, places = np.divmod(positions, self._together)
        if len(blocks) and blocks[0] < self._block:
            self._begin()
        found: list[Int64s] = []
        for block in np.unique(blocks).tolist():
            while self._block < block:
                self._block += 1
                size = min(self._together, len(self._plan) - self._block * self._together)
                self._batches = self._stream(size)
            here = places[blocks == block]
            if self._plan.shuffle:
                here = Permutation(len(self._batches), self._plan.seed, self._epoch, stream=_MIXED + block)[here]
            found += [self._batches[place] for place in here.tolist()]
        return np.concatenate(found), np.cumsum([len(batch) for batch in found])

    def _stream(self, count: int) -> list[Int64s]:
        """Go on through the order until `count` batches are ready."""
        plan, order = self._plan, self._plan.order
        largest = int(plan.buckets[:, 3].max())
        batches: list[Int64s] = []
        while len(batches) < count:
            if not len(self._records):
                stop = min(self._position + _CHUNK, len(order))
                if stop == self._position:
                    raise OrderError(f"the order gave only some of {plan.records} records, expected each of them once")
                positions = np.arange(self._position, stop, dtype=np.int64)
                self._records = np.ascontiguousarray(order.at(self._epoch, positions), np.int64)
                self._position = stop
            out = np.empty(len(self._records) + largest, np.int64)
            ends = np.empty(count - len(batches), np.int64)
            try:
                consumed, ready = self._native.push(self._records, out, ends)
            except ValueError as error:
                raise OrderError(f"{error}; expected each of {plan.records} records once") from None
            self._records = self._records[consumed:]
            batches += [out[begin:end] for begin, end in pairwise([0, *ends[:ready].tolist()])]
        return batches
