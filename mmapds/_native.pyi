from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, Protocol, SupportsIndex, TypeAlias, final, type_check_only

import numpy as np
from numpy.typing import NDArray
from typing_extensions import disjoint_base

# typing.Buffer arrives with Python 3.12: this is what the callers pass.
_Buffer: TypeAlias = object

SIMD: str
ADVISE_RANDOM: int
ADVISE_SEQUENTIAL: int
FIELD_ARRAY: int
FIELD_BOOL: int
FIELD_BYTES: int
FIELD_COPY: int
FIELD_FLOAT: int
FIELD_INT: int
FIELD_JSON: int
FIELD_STR: int
FIELD_UINT: int
FRAMES_DATA_CRC: int
FRAMES_LENGTH_CRC: int
FRAMES_NO_VARINT: int
FRAMES_OK: int
FRAMES_PAYLOAD_CUT: int
FRAMES_PREFIX_CUT: int
FRAMING_FIRST_LINE: int
FRAMING_LINES: int
FRAMING_NONE: int
FRAMING_TFRECORD: int
FRAMING_U32BE: int
FRAMING_U32LE: int
FRAMING_U64BE: int
FRAMING_U64LE: int
FRAMING_VARINT: int
INFLATE_BLOCK: int
INFLATE_CUT: int
INFLATE_DAMAGED: int
INFLATE_END: int
INFLATE_FULL: int
INFLATE_MEMBER: int
INFLATE_NOT_MEMBER: int
INFLATE_SLACK: int
INFLATE_WINDOW: int
IO_COPY: int
IO_MAP: int
IO_PREAD: int
ITEM_BFLOAT: int
ITEM_BOOL: int
ITEM_FLOAT: int
ITEM_INT: int
ITEM_TEXT: int
ITEM_UINT: int
JSON_INVALID: int
JSON_MISSING: int
JSON_OK: int
JSON_PARTIAL: int
JSON_TYPE: int
LAYOUT_ANY: int
LAYOUT_RAGGED: int
LAYOUT_SHAPE: int
LONGEST_PATH: int
MEASURE_BYTES: int
MEASURE_CHARS: int
MEASURE_ITEMS: int
MEASURE_NUMBER: int
MEASURE_RECORD: int
MISSING_ERROR: int
MISSING_FILL: int
MISSING_SKIP: int
MOST_COLUMNS: int
MOST_LISTED: int
NUMBER_F64: int
NUMBER_I64: int
NUMBER_U64: int
TAR_BLOCK: int
TAR_DUPLICATE: int
TAR_END: int
TAR_EXTENDED: int
TAR_GARBAGE: int
TAR_GLOBAL: int
TAR_MORE: int
TAR_NUMBER: int
TAR_OK: int
TAR_SPARSE: int
TAR_TRUNCATED: int
TAR_ZEROS: int
WANTED_INVALID: int
WANTED_MISSING: int
WANTED_NOT_OBJECT: int
WANTED_RAGGED: int
WANTED_RANGE: int
WANTED_SHAPE: int
WANTED_TYPE: int
ZSTD_CONTENT: int
ZSTD_CUT: int
ZSTD_DICTIONARY: int
ZSTD_NOT_FRAME: int
ZSTD_OK: int
ZSTD_RESERVED: int
ZSTD_WINDOW: int

@final
class Map:
    @property
    def size(self) -> int: ...
    @property
    def mtime_ns(self) -> int: ...
    @property
    def is_mapped(self) -> bool: ...
    def __new__(cls, path: str, io: int = 0) -> Map: ...
    def read(self, begin: int, size: int, /) -> bytes: ...
    def read_runs(self, begins: _Buffer, size: int, out: _Buffer, /) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def count_above(self, begin: int, count: int, wanted: int, /) -> int: ...
    def take(self, begin: int, width: int, count: int, positions: _Buffer, out: _Buffer, /) -> None: ...
    def advise(self, advice: int, /) -> None: ...
    def populate(self, begin: int, end: int, /) -> None: ...

@type_check_only
class _Reader(Protocol):
    @property
    def size(self) -> int: ...
    def blocks(self, wanted: bytes, /) -> Iterable[tuple[int, bytes | Block]]: ...

@type_check_only
class _Opener(Protocol):
    def open(self, source: int, records: Records, /) -> tuple[Map | _Reader, Map, int, int, int, int, int]: ...
    def corrupt(self, source: int, record: int, begin: int, end: int, size: int, /) -> None: ...
    def lost(self, source: int, code: int, /) -> None: ...
    def no_room(self, source: int, record: int, begin: int, size: int, count: int, /) -> None: ...

@final
class Records:
    def __new__(cls, firsts: _Buffer, opener: _Opener, readahead: bool, will_need: bool, views: bool) -> Records: ...
    def __len__(self) -> int: ...
    def __getitem__(self, record: SupportsIndex, /) -> Any: ...
    def locate(self, record: SupportsIndex, /) -> tuple[int, int, int, int]: ...
    def check(self, record: SupportsIndex, /) -> None: ...
    def copy(self, record: SupportsIndex, /) -> bytes: ...
    def fitting(self, rows: Sequence[int] | NDArray[np.integer[Any]], room: int, /) -> int: ...
    def forget(self) -> None: ...
    def many(self, rows: Sequence[int] | NDArray[np.integer[Any]], /) -> list[Any]: ...
    def decode(
        self,
        rows: Sequence[int] | NDArray[np.integer[Any]],
        decode: Callable[[Any], Any],
        refused: Callable[[int, Exception], NoReturn],
        /,
    ) -> list[Any]: ...

@disjoint_base
class Samples:
    _records: Records
    _decode_record: Callable[[Any], Any] | None
    def __getitem__(self, key: Any, /) -> Any: ...

@final
class ArrayFields:
    def __new__(
        cls,
        fields: tuple[tuple[str, int, int, tuple[int | None, ...], Any], ...],
        make_array: Any,
        loads: Any,
        error: type[Exception],
    ) -> ArrayFields: ...
    def __call__(self, record: _Buffer, /) -> dict[str, Any]: ...
    def words(self, data: _Buffer, begin: int, /) -> tuple[int, ...] | None: ...

@final
class ArrayBatch:
    def __new__(cls, records: Records, rows: Sequence[SupportsIndex], fields: ArrayFields) -> ArrayBatch: ...
    def __len__(self) -> int: ...
    def __getitem__(self, k: SupportsIndex, /) -> bytes | memoryview: ...
    def check(self, k: SupportsIndex, /) -> None: ...
    def values(self, field: int, /) -> list[Any]: ...
    def words(self, field: int, /) -> bytearray: ...
    def shapes(self, field: int, /) -> bytes: ...
    def join(
        self, field: int, cut: tuple[int, bool], row: int, begins: _Buffer | None, fill: int, out: _Buffer, /
    ) -> None: ...

@final
class JsonFields:
    def __new__(cls, fields: tuple[Any, ...], make_array: Any, error: type[Exception]) -> JsonFields: ...
    def __call__(self, record: _Buffer, /) -> dict[str, Any]: ...

@final
class JsonBatch:
    def __new__(cls, records: Records, rows: Any, fields: JsonFields, skip: bool) -> JsonBatch: ...
    def __len__(self) -> int: ...
    def __getitem__(self, k: SupportsIndex, /) -> dict[str, Any]: ...
    @property
    def places(self) -> bytes: ...
    @property
    def refused(self) -> list[tuple[int, tuple[int, str | None, int]]]: ...
    def values(self, field: int, /) -> list[Any]: ...
    def items(self, field: int, /) -> bytearray: ...
    def shapes(self, field: int, /) -> tuple[int, bytes] | None: ...
    def join(
        self, field: int, cut: tuple[int, bool], row: int, begins: _Buffer | None, fill: int, out: _Buffer, /
    ) -> None: ...

@final
class TarScanner:
    def __new__(cls, path: str | None = ...) -> TarScanner: ...
    def scan(
        self, data: _Buffer, size: int, is_whole: bool, begins: _Buffer, sizes: _Buffer, hashes: _Buffer, /
    ) -> tuple[int, int, int, int, int, tuple[str, str] | tuple[int, int] | None]: ...

@final
class Inflater:
    def __new__(cls, source: Map) -> Inflater: ...
    def read(self, out: _Buffer, filled: int, enough: int, /) -> tuple[int, int, int, int, int, int]: ...

@final
class Block:
    @property
    def room(self) -> int: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class BlockMemory:
    def __new__(cls) -> BlockMemory: ...
    def copy(self, size: int, pieces: Iterable[_Buffer], /) -> Block: ...

@final
class Zstd:
    def __new__(cls, name: str) -> Zstd: ...
    def decode(
        self, memory: BlockMemory, source: Map, begin: int, end: int, size: int, max_window: int, /
    ) -> Block | None: ...

@final
class Measuring:
    def __new__(
        cls,
        *,
        fields: tuple[tuple[int, tuple[bytes | None, ...]], ...],
        missing: int,
        fill: tuple[int, int],
        validate: bool,
        skip_bad: bool,
    ) -> Measuring: ...
    def lines(
        self, text: _Buffer, base: int, begin: int, end: int, starts: _Buffer, cells: tuple[_Buffer, ...], /
    ) -> tuple[
        tuple[int, int | None, int],
        int,
        tuple[tuple[int, int, int], ...],
        tuple[int, tuple[int, ...]],
        tuple[int, int, int, int],
    ]: ...

@final
class Permutation:
    def __new__(cls, n: int, seed: int, epoch: int, stream: int) -> Permutation: ...
    def one(self, value: int, inverse: bool, /) -> int: ...
    def range(self, first: int, step: int, out: _Buffer, /) -> None: ...
    def array(self, positions: _Buffer, out: _Buffer, inverse: bool, /) -> None: ...

@final
class Chunks:
    def __new__(
        cls,
        *,
        chunk_size: int,
        mix_chunks: int,
        seed: int,
        epoch: int,
        first_chunk: _Buffer,
        first_record: _Buffer,
        short_slots: _Buffer,
        short_ends: _Buffer,
        short_missing: _Buffer,
        order: Permutation,
    ) -> Chunks: ...
    def at(self, positions: _Buffer, out: _Buffer, /) -> None: ...

@final
class Mixture:
    def __new__(cls, *, weights: _Buffer, sizes: _Buffer, seed: int, shuffle: bool) -> Mixture: ...
    def at(self, epoch: int, positions: _Buffer, out: _Buffer, /) -> None: ...
    def which(self, positions: _Buffer, out: _Buffer, /) -> None: ...

@final
class Lengths:
    def __new__(cls, lengths: _Buffer, width: int) -> Lengths: ...
    def largest(self, /) -> int: ...
    def sort(self, counts: _Buffer, order: _Buffer, order_width: int, /) -> None: ...
    def sort_digits(
        self, shift: int, counts: _Buffer, previous: _Buffer | None, order: _Buffer, order_width: int, /
    ) -> None: ...
    def runs(self, order: _Buffer, order_width: int, /) -> tuple[bytes, bytes]: ...

@final
class Plan:
    def __new__(
        cls,
        *,
        buckets: _Buffer,
        first_rank: int,
        seed: int,
        epoch: int,
        shuffle: bool,
    ) -> Plan: ...
    def batches(self, batches: _Buffer, out: _Buffer, ends: _Buffer, /) -> None: ...

@final
class Packs:
    def __new__(cls, *, kinds: _Buffer, parts: _Buffer, counts: _Buffer) -> Packs: ...
    def ranks(self, seed: int, epoch: int, shuffle: bool, packs: _Buffer, out: _Buffer, ends: _Buffer, /) -> None: ...

@final
class Stream:
    def __new__(
        cls,
        *,
        buckets: _Buffer,
        ranks: int,
        records: int,
        values: _Buffer,
        first_buckets: _Buffer,
        splits: _Buffer,
        table: _Buffer,
    ) -> Stream: ...
    def push(self, records: _Buffer, lengths: _Buffer, out: _Buffer, ends: _Buffer, /) -> tuple[int, int]: ...

@final
class Bits:
    def __new__(cls, words: _Buffer, before: _Buffer, limit: int, file: Map | None = None) -> Bits: ...
    def select(self, ranks: _Buffer, out: _Buffer, /) -> None: ...

@final
class Runs:
    def __new__(
        cls,
        *,
        pieces: tuple[tuple[_Buffer, int, int, int, int], ...],
        begins: _Buffer,
        begin_width: int,
        which: _Buffer,
        places: _Buffer,
        place_width: int,
        total: int,
    ) -> Runs: ...
    def at(self, positions: _Buffer, out: _Buffer, /) -> None: ...

def scan_lines(
    variant: str | None, data: _Buffer, base: int, pending: int | None, starts: _Buffer, /
) -> tuple[int, int | None, int]: ...
def pack_array_records(
    words: tuple[_Buffer, ...],
    parts: tuple[tuple[_Buffer, _Buffer, _Buffer, bool], ...],
    first: int,
    out: _Buffer,
    ends: _Buffer,
    /,
) -> tuple[int, int]: ...
def pack_bounds(width: int, held: _Buffer, bounds: _Buffer, /) -> bytearray: ...
def unpack_bounds(width: int, groups: _Buffer, /) -> bytearray: ...
def record_sizes(starts: _Buffer, previous: int | None, smallest: int, largest: int, /) -> tuple[int, int]: ...
def frames_scan(
    data: _Buffer, framing: int, at: int, end: int, starts: _Buffer, sizes: _Buffer | None, /
) -> tuple[int, int, int, int, int, int]: ...
def frames_verify(data: _Buffer, at: int, end: int, /) -> tuple[int, int, int, int, int, int]: ...
def zstd_walk(
    source: Map, end: int, max_window: int, state: _Buffer, begins: _Buffer, contents: _Buffer, /
) -> tuple[int, int]: ...
def varints(data: _Buffer, begin: int, end: int, /) -> bytearray: ...
def crc32c(variant: str | None, crc: int, data: _Buffer, /) -> int: ...
def measure_record(
    variant: str | None, fields: tuple[tuple[int, tuple[bytes | None, ...]]], data: _Buffer, /
) -> tuple[int, int, int, int]: ...
def json_error(variant: str | None, data: _Buffer, /) -> int | None: ...
def cells_convert(cells: _Buffer, from_type: int, to_type: int, /) -> None: ...
def cells_narrow(numbers: _Buffer, out: _Buffer, /) -> None: ...
def cells_widen(numbers: _Buffer, out: _Buffer, /) -> None: ...
def cells_inexact(cells: _Buffer, number_type: int, /) -> int: ...
def cells_largest(cells: _Buffer, /) -> int: ...
def draw(n: int, seed: int, epoch: int, positions: _Buffer, out: _Buffer, /) -> None: ...
def weighted(
    sums: tuple[_Buffer, _Buffer], draws: int, rounded: bool, key: tuple[int, int], positions: _Buffer, out: _Buffer, /
) -> None: ...
def join_pieces(arrays: list[NDArray[Any]], begins: _Buffer | None, fill: int, out: _Buffer, /) -> None: ...
def number_tokens(
    bounds: _Buffer, width: int, positions: _Buffer, numbers: _Buffer | None, ids: _Buffer | None, /
) -> None: ...
def lengths_runs_of(ends: _Buffer, /) -> tuple[bytes, bytes]: ...
def plan_buckets(
    budget: tuple[int, int, int, int], values: _Buffer, counts: _Buffer, cut: tuple[int, int, int], between: bool, /
) -> bytes: ...
def bits_set(words: _Buffer, limit: int, numbers: _Buffer, /) -> None: ...
def bits_count(words: _Buffer, before: _Buffer, /) -> None: ...
def runs_count(
    lengths: _Buffer, count: int, values: _Buffer, counts: _Buffer, runs: _Buffer, records: _Buffer, /
) -> None: ...
def runs_place(
    lengths: _Buffer,
    own: tuple[_Buffer, _Buffer, _Buffer | None],
    piece: int,
    runs: _Buffer,
    ranks: _Buffer,
    tables: tuple[_Buffer, int, _Buffer, _Buffer, int],
    /,
) -> None: ...
def json_cut(record: _Buffer, key: _Buffer, begin: int, end: int, /) -> tuple[bytes, int] | None: ...
def pack_lengths(length: int, most: int, limit: int, values: _Buffer, counts: _Buffer, /) -> tuple[bytes, bytes]: ...
def tar_members(record: _Buffer, limit: int, /) -> tuple[int, int, str | None, list[tuple[str, int, int]]]: ...
def tar_hash(key: _Buffer, /) -> int: ...
def simd_variants() -> list[str]: ...
