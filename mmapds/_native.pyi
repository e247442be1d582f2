from collections.abc import Sequence
from typing import Any, Protocol, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray

# typing.Buffer arrives with Python 3.12: this is what the callers pass.
Buffer: TypeAlias = object

SIMD: str
FRAMING_FIRST_LINE: int
FRAMING_LINES: int
FRAMING_NONE: int
FRAMING_TFRECORD: int
FRAMING_U32BE: int
FRAMING_U32LE: int
FRAMING_U64BE: int
FRAMING_U64LE: int
FRAMING_VARINT: int
LONGEST_PATH: int
MOST_COLUMNS: int
MEASURE_BYTES: int
MEASURE_CHARS: int
MEASURE_ITEMS: int
MEASURE_NUMBER: int
MEASURE_RECORD: int
MISSING_ERROR: int
MISSING_FILL: int
MISSING_SKIP: int
ADVISE_NORMAL: int
ADVISE_RANDOM: int
ADVISE_SEQUENTIAL: int

class Map:
    size: int
    mtime_ns: int
    def __new__(cls, path: str) -> Map: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def advise(self, advice: int, /) -> None: ...

class Opener(Protocol):
    def open(self, source: int, /) -> tuple[Map, Buffer, int, int, int]: ...
    def corrupt(self, source: int, record: int, begin: int, end: int, size: int, /) -> None: ...

class Records:
    def __new__(cls, firsts: Buffer, opener: Opener, readahead: bool, will_need: bool, views: bool) -> Records: ...
    def __len__(self) -> int: ...
    def __getitem__(self, record: SupportsIndex, /) -> Any: ...
    def locate(self, record: SupportsIndex, /) -> tuple[int, int, int, int]: ...
    def many(self, records: Sequence[int] | NDArray[np.integer[Any]], /) -> list[Any]: ...

class TarScanner:
    def __new__(cls, map: Map, path: str) -> TarScanner: ...  # noqa: A002
    def scan(self, begins: Buffer, sizes: Buffer, hashes: Buffer, /) -> tuple[int, int, int, int, int]: ...

class ArrayBatch:
    def __new__(cls, records: Records, rows: Sequence[SupportsIndex], fields: ArrayFields) -> ArrayBatch: ...
    def __len__(self) -> int: ...
    def __getitem__(self, k: SupportsIndex, /) -> bytes | memoryview: ...
    def values(self, field: int, /) -> list[Any]: ...
    def words(self, field: int, /) -> bytearray: ...
    def shapes(self, field: int, /) -> bytes: ...
    def pad(self, field: int, longest: int, left: bool, row: int, fill: int, out: Buffer, /) -> None: ...

class ArrayFields:
    def __new__(
        cls,
        fields: tuple[tuple[str, int, int, tuple[int | None, ...], Any], ...],
        make_array: Any,
        loads: Any,
        error: type[Exception],
    ) -> ArrayFields: ...
    def __call__(self, record: Buffer, /) -> dict[str, Any]: ...
    def words(self, data: Buffer, begin: int, /) -> tuple[int, ...] | None: ...

class Permutation:
    def __new__(cls, n: int, seed: int, epoch: int, stream: int) -> Permutation: ...
    def one(self, value: int, inverse: bool, /) -> int: ...
    def range(self, first: int, step: int, out: Buffer, /) -> None: ...
    def array(self, positions: Buffer, out: Buffer, inverse: bool, /) -> None: ...

def scan_lines(
    fd: int, begin: int, end: int, pending: int | None, starts: Buffer, scratch: Buffer, /
) -> tuple[int, int | None, int]: ...
def scan_buffer(
    variant: str | None, data: Buffer, base: int, pending: int | None, starts: Buffer, /
) -> tuple[int, int | None, int]: ...
def record_sizes(starts: Buffer, previous: int | None, smallest: int, largest: int, /) -> tuple[int, int]: ...
def draw(n: int, seed: int, epoch: int, positions: Buffer, out: Buffer, /) -> None: ...
def chunks_at(
    chunk_size: int,
    mix_chunks: int,
    seed: int,
    epoch: int,
    first_chunk: Buffer,
    first_record: Buffer,
    short_slots: Buffer,
    short_ends: Buffer,
    short_missing: Buffer,
    order: Permutation,
    positions: Buffer,
    out: Buffer,
    /,
) -> None: ...
def mixture_period(weights: Buffer, which: bytearray, rank: bytearray, /) -> None: ...
def mixture_at(
    seed: int,
    epoch: int,
    shuffle: bool,
    weights: Buffer,
    sizes: Buffer,
    first_record: Buffer,
    which: bytearray,
    rank: bytearray,
    positions: Buffer,
    out: Buffer,
    /,
) -> None: ...
def measure_record(
    variant: str | None, fields: tuple[tuple[int, tuple[bytes, ...]]], data: Buffer, /
) -> tuple[int, int, int, int]: ...
def json_error(variant: str | None, data: Buffer, /) -> int | None: ...
def measure_lines(
    source: Map,
    begin: int,
    end: int,
    pending: int | None,
    fields: tuple[tuple[int, tuple[bytes, ...]], ...],
    missing: int,
    fill: tuple[int, int],
    validate: bool,
    starts: Buffer,
    cells: tuple[Buffer, ...],
    /,
) -> tuple[tuple[int, int | None, int], int, tuple[int, ...], tuple[int, int, int, int]]: ...
def frames_scan(
    source: Map, framing: int, at: int, end: int, starts: Buffer, sizes: Buffer | None, /
) -> tuple[int, int, int, int, int, int]: ...
def frames_verify(source: Map, at: int, end: int, /) -> tuple[int, int, int, int, int, int]: ...
def varints(data: Buffer, begin: int, end: int, /) -> bytearray: ...
def crc32c(variant: str | None, crc: int, data: Buffer, /) -> int: ...
def cells_convert(cells: Buffer, kind: int, to: int, /) -> None: ...
def cells_narrow(cells: Buffer, out: Buffer, /) -> None: ...
def cells_widen(numbers: Buffer, cells: Buffer, /) -> None: ...
def cells_largest(cells: Buffer, /) -> int: ...
def lengths_largest(lengths: Buffer, width: int, /) -> int: ...
def lengths_sort(
    lengths: Buffer,
    width: int,
    shift: int,
    digits: bool,
    counts: Buffer,
    previous: Buffer | None,
    order: Buffer,
    order_width: int,
    /,
) -> None: ...
def lengths_runs(lengths: Buffer, width: int, order: Buffer, order_width: int, /) -> tuple[bytes, bytes]: ...
def lengths_runs_of(ends: Buffer, /) -> tuple[bytes, bytes]: ...
def plan_buckets(
    budget: tuple[int, int, int, int], values: Buffer, counts: Buffer, wanted: int, close: bool, /
) -> bytes: ...
def plan_batches(
    buckets: Buffer,
    order: Buffer,
    order_width: int,
    first_rank: int,
    records: int,
    seed: int,
    epoch: int,
    shuffle: bool,
    batches: Buffer,
    out: Buffer,
    ends: Buffer,
    /,
) -> None: ...
def plan_find(
    buckets: Buffer,
    order: Buffer,
    order_width: int,
    first_rank: int,
    records: int,
    seed: int,
    epoch: int,
    shuffle: bool,
    ranks: Buffer,
    batches: Buffer,
    /,
) -> None: ...
def stream_push(
    buckets: Buffer,
    ranks: int,
    lengths: Buffer,
    width: int,
    values: Buffer,
    first_buckets: Buffer,
    splits: Buffer,
    table: Buffer,
    taken: Buffer,
    batches: Buffer,
    open_first: Buffer,
    records: Buffer,
    out: Buffer,
    ends: Buffer,
    /,
) -> tuple[int, int]: ...
def pad_rows(arrays: list[NDArray[Any]], fill: int, out: Buffer, /) -> None: ...
def tar_members(record: Buffer, limit: int, /) -> tuple[int, int, str | None, list[tuple[str, int, int]]]: ...
def tar_hash(key: bytes, /) -> int: ...
def simd_variants() -> list[str]: ...
