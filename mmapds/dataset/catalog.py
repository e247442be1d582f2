"""The catalog of a dataset: its indexes, their sources, and how the core opens a source when it is first read."""

import json
import os
from collections.abc import Sequence
from functools import partial
from typing import NoReturn

import numpy as np
from xxhash import xxh3_64

from .. import _native, formats
from ..compression import cache
from ..compression.plain import line_number
from ..compression.reader import BlockReader, random_access_error
from ..errors import EXPECTED_ROOM, RAISE_LIMIT, Error, SourceError, build_command, option, shortened
from ..formats.format import ArrayOf, FieldsOf, Sample
from ..storage.blocks import BlockTable
from ..storage.current import check_source
from ..storage.files import IoChoice, check_io, io_of, open_file
from ..storage.index_file import Index
from ..storage.sources import INDEX_SUFFIX, Source, kind_of_file, open_regular, reason
from .decode import Decoder, TensorDecoder, decoder_name, format_decoder, is_same_decoder
from .fields import Fields
from .location import BlockLocation, Location
from .stored_fields import StoredFields, differing_records
from .webdataset import check_pillow

_ADVICE = {
    "auto": _native.ADVISE_RANDOM,
    "random": _native.ADVISE_RANDOM,
    "sequential": _native.ADVISE_SEQUENTIAL,
}
_MOST = 2**63  # records, as positions are signed
_SKIP = "on_error='skip'"
_HEAD = 64  # bytes of a record that are looked at
_JSON_BEGINS = [bytes([each]) for each in b'{["-0123456789tfn'] + [b""]


class Catalog:
    """The indexes behind a dataset, whose records are numbered consecutively over all sources.

    The core's `Records` refer to the catalog and ask it for sources. The catalog does not refer to them: there is no
    cycle, so all maps are closed as soon as the last view is gone.

    Args:
      indexes: in the order in which their records are numbered.
      access: how records will be read, as in `mmapds.open`.
      io: the same.
      block_cache: the same.
    """

    def __init__(self, indexes: list[Index], access: str, io: IoChoice, block_cache: int = cache.DEFAULT_SIZE) -> None:
        if access not in _ADVICE:
            raise Error(f"access = {access!r}, expected one of {', '.join(map(repr, _ADVICE))}")
        check_io(io)
        if type(block_cache) is not int or block_cache < 0:
            raise Error(f"block_cache = {shortened(block_cache)}, expected a number of bytes, 0 or more")
        self.blocks = cache.BlockCache(block_cache)
        """Decoded blocks of compressed sources."""
        self.indexes = indexes
        self.access = access
        self.io = io
        self.members = [(index, number) for index in indexes for number in range(len(index.sources))]
        """Every source: its index, and its number there."""
        counts = [index.sources[number].records for index, number in self.members]
        self._paths: dict[int, str] = {}
        if sum(counts) >= _MOST:
            raise indexes[0].damaged(f"expected less than 2**63 records in all, found {sum(counts)}")
        self.starts = np.cumsum([0, *counts], dtype=np.uint64)
        """Number of the first record of each source, and how many records there are: shape (sources + 1,)."""
        if access == "random":
            self._check_random()
        for index in indexes:
            index.map.advise(_ADVICE[access])

    def _check_random(self) -> None:
        """Raise Error for a source whose records can be read in order alone."""
        for index, number in self.members:
            source = index.sources[number]
            if source.compression is not None and not source.compression.is_random:
                raise random_access_error(index.source_path(number), source, "found access = 'random'")

    def fingerprint(self, rows: bytes) -> str:
        """Return what identifies the records of all sources, as they were indexed, and a selection of them."""
        mark = xxh3_64(rows)
        for index, number in self.members:
            source = index.sources[number]
            mark.update(f"{source.fingerprint} {source.size} {source.records} ".encode())
            if source.skipped:  # which they are follows from the source and from the options
                mark.update(json.dumps(index.measuring, sort_keys=True).encode())
        return mark.hexdigest()

    @property
    def compares(self) -> bool:
        """Whether sources are compared with what they were when they were indexed; not with `check="none"`."""
        return all(index.check != "none" for index in self.indexes)

    def records(self, *, views: bool) -> _native.Records:
        """Return the payloads of all records, as bytes or as views of their sources, which are mapped at first use."""
        ahead, ask = self.access == "auto", self.access != "sequential"
        return _native.Records(self.starts, self, readahead=ahead, will_need=ask, views=views)

    def decoder(self, given: str | Decoder | None = None) -> str | Decoder:
        """Return the decoder that the user means: the one given, or else that of the format.

        Raises:
          Error: the indexes have different decoders, or torch or Pillow is missing.
          FormatError: the format's records cannot be given to this decoder.
        """
        for index in self.indexes:
            formats.check_decoder(index, given)
        if given == "pil":
            check_pillow()
        if isinstance(given, Fields):
            return self._alike([self._fields_of(index, given) for index in self.indexes])
        if given is not None and given != "torch":
            return given
        found = self._alike([self._decoder_of(index) for index in self.indexes])
        if given is None:
            return found
        try:
            return TensorDecoder(found)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise Error("decode = 'torch' needs torch; run: pip install 'mmapds[torch]'") from None

    def _decoder_of(self, index: Index) -> str | Decoder:
        with index.reporting_malformed_metadata():
            return format_decoder(_sample_of(index))

    def _fields_of(self, index: Index, given: Fields) -> Decoder:
        """Return the decoder of the fields that a user wants of the records of an index."""
        with index.reporting_malformed_metadata():
            sample = _sample_of(index)
            if isinstance(sample, FieldsOf):
                return StoredFields(given, sample.schema, index.path)
            if isinstance(sample, ArrayOf) or sample == "files":
                found = decoder_name(format_decoder(sample))
                raise Error(f"decode = {given!r}, expected records of JSON or named arrays, found records for {found}")
            return given

    def _alike(self, found: Sequence[str | Decoder]) -> str | Decoder:
        """Return the one decoder of all indexes."""
        for index, decode in zip(self.indexes, found, strict=True):
            if not is_same_decoder(decode, found[0]):
                if differ := differing_records(found[0], decode, self.indexes[0].path):
                    raise Error(f"{index.path}: {differ}")
                raise Error(
                    f"{index.path}: expected records for decode = {decoder_name(found[0])}, as in "
                    f"{self.indexes[0].path}, found records for {decoder_name(decode)}; give decode="
                )
        return found[0]

    def source_path(self, member: int) -> str:
        """Return the path of a source."""
        path = self._paths.get(member)
        if path is None:
            index, number = self.members[member]
            path = self._paths[member] = index.source_path(number)
        return path

    def open(self, member: int) -> tuple[_native.Map | BlockReader, _native.Map, int, int, int, int, int]:
        """Open a source for the core, and say how its records lie there; a compressed one by a reader of its blocks.

        Raises:
          SourceError: it is missing, not a regular file, or lies where the user has not allowed it.
          StaleIndexError: it changed after it was indexed.
        """
        index, number = self.members[member]
        path = index.readable_path(number)
        absolute = index.absolute(path)
        try:
            opened = open_file(absolute, io_of(self.io, absolute))
        except OSError as error:
            raise index.unreadable(number, reason(error)) from None
        except ValueError:
            kind = kind_of_file(os.stat(absolute).st_mode)
            raise SourceError(f"{path}: expected a regular file, found {kind} (a source of {index.path})") from None
        check_source(index, number, opened.size, opened.mtime_ns)
        content: _native.Map | BlockReader = opened
        if index.sources[number].compression is None:
            opened.advise(_ADVICE[self.access])
        else:  # without advice: a block is many pages
            content = BlockReader(index, number, opened, self.blocks, member, partial(self.lost, member))
        with index.reporting_malformed_metadata():
            layout = formats.of_index(index).layout(index.parameters, index.sources[number])
        if index.has_bounds != (layout.stride == 0):
            expected, found = ("offsets", "none") if layout.stride == 0 else ("no offsets", "some")
            raise index.damaged(f"format {index.format!r}: expected {expected}, found {found}")
        return content, index.map, index.bounds_at(number), index.sources[number].width, *layout

    def lost(self, member: int, code: int) -> None:
        """Raise the error for a source that was cut short, or cannot be read; the core calls this.

        Args:
          code: what the system says (errno), or 0 where a file ended too early.
        Raises:
          SourceError: the source is missing, or the system cannot read it.
          StaleIndexError: it is shorter now.
          FormatError: its index is.
        """
        index, number = self.members[member]
        path = index.source_path(number)
        if code:
            raise index.unreadable(number, os.strerror(code).lower())
        try:
            found = os.stat(index.absolute(path))
        except OSError as error:
            raise index.unreadable(number, reason(error)) from None
        index.check_size(number, found.st_size)
        try:
            size = os.stat(index.absolute(index.path)).st_size
        except OSError:
            size = index.map.size
        if size < index.map.size:
            raise index.cut_short()
        expected = index.sources[number].size
        raise SourceError(f"{path}: expected {expected} bytes, found fewer; check the disk (a source of {index.path})")

    def corrupt(self, member: int, record: int, begin: int, end: int, size: int) -> None:
        """Raise FormatError for bounds of a record that do not fit its source; the core calls this."""
        index, number = self.members[member]
        raise index.damaged(
            f"record {record} of {index.source_path(number)}: expected bytes within 0 to {size}, found {begin} to {end}"
        )

    def no_room(self, member: int, record: int, begin: int, size: int, count: int = 1) -> NoReturn:
        """Raise MemoryError for records that memory has no room for together; the core calls this.

        Args:
          member, record, begin: the largest of them.
          size: bytes of all.
          count: how many they are.
        """
        what = f"a record of {size} bytes" if count == 1 else f"{count} records of {size} bytes together"
        index, number = self.members[member]
        blocks = "" if index.sources[number].compression is None else ", and for the blocks that it lies in"
        fewer = "" if count == 1 else ", take fewer records at a time"
        raise self._short_of_memory((member, record, begin, begin), f"{what}{blocks}", fewer)

    def no_room_to_decode(self, located: tuple[int, int, int, int], said: str) -> MemoryError:
        """Return the error to raise where memory has no room for what a decoder makes of a record.

        Args:
          said: by the decoder.
        """
        what = f"decoding a record of {located[3] - located[2]} bytes"
        remark = said.partition("\n")[0]
        return self._short_of_memory(located, what, remark=f" ({remark})" if remark else "")

    def _short_of_memory(
        self, located: tuple[int, int, int, int], what: str, fewer: str = "", remark: str = ""
    ) -> MemoryError:
        others = f"{fewer}, or leave the record out with exclude= in a sampler{remark}"
        return MemoryError(f"{self.place(located)}: {EXPECTED_ROOM} for {what}, found none; {RAISE_LIMIT}{others}")

    def location(self, member: int, begin: int, end: int) -> Location:
        """Return where a record lies, as `ds.where` says it."""
        path = self.source_path(member)
        index, number = self.members[member]
        if index.sources[number].compression is None:
            return Location(path, begin, end - begin)
        table = BlockTable(index, number)
        return BlockLocation.of(path, begin, end - begin, table.place(table.find(begin)).begin)

    def place(self, located: tuple[int, int, int, int]) -> str:
        """Return where a record lies, as messages say it: `train.jsonl:41 (byte 51200)`.

        Args:
          located: what `Records.locate` gives for the record.
        """
        member, record, offset, _ = located
        index, number = self.members[member]
        path = index.source_path(number)
        if not formats.of_index(index).is_text:
            return f"{path}: record {record} (byte {offset})"
        line = self._line(index, number, record, offset)
        return f"{path}{f': record {record}' if line is None else f':{line}'} (byte {offset})"

    def check_line(self, located: tuple[int, int, int, int]) -> None:
        """Raise FormatError where a record that cannot be decoded is not a whole line, so that the index is to blame.

        Args:
          located: what `Records.locate` gives for the record.
        """
        member, record, begin, end = located
        index, number = self.members[member]
        if not formats.of_index(index).is_text or index.check == "none":
            return
        path = index.source_path(number)
        try:
            head, before, after = self._parts(member, (0, min(begin, 3)), (max(begin - 1, 0), begin), (end, end + 2))
        except (OSError, Error, MemoryError):
            return  # the decoder's error says more
        begins = begin == 0 or before == b"\n" or (begin == 3 and head == b"\xef\xbb\xbf")
        if not begins or not (after.startswith(b"\n") or after in (b"", b"\r\n")):
            raise index.damaged(f"record {record} of {path}: expected a whole line, found bytes {begin} to {end}")

    def way_out(self, located: tuple[int, int, int, int], position: int, decode: str | Decoder, on_error: str) -> str:
        """Return what to do about a record that cannot be decoded, as the end of a message.

        Args:
          located: what `Records.locate` gives for the record.
          position: of the record in the dataset, which samplers exclude it by.
          on_error: what the dataset does with such records already.
        """
        index, number = self.members[located[0]]
        exclude = f"exclude=[{position}] in a sampler"
        ways = f"out with {exclude}" if on_error == "skip" else f"out with {_SKIP}, or {exclude}"
        converts = os.path.basename(index.path).startswith(".")  # the index is that of a conversion, which removes it
        if converts and decode != "json":
            return "; decode takes the bytes of a record, and returns what to write" if callable(decode) else ""
        remark = f" ({_SKIP} needs a batch that has others)" if on_error == "skip" else ""
        if decode != "json" or not formats.of_index(index).is_text:
            return f"; leave record {position} {ways}{remark}"
        if converts:
            command = build_command([index.source_path(number)], "--bad skip")
            return f"; run: {command} (and convert {index.source_path(number)}{INDEX_SUFFIX})"
        keep = f"leave record {position} {ways}, which keeps positions{remark}"
        hint = "" if self._may_be_json(located) else f"open it with {option('decode', 'text')} if it is text; or "
        command = index.hint("--bad skip", force=False)
        return f"; {hint}{keep}; or leave all such lines out of the index, which changes len; {command}"

    def _may_be_json(self, located: tuple[int, int, int, int]) -> bool:
        """Whether a record begins as JSON does, so that it was meant to be JSON."""
        member, _, begin, end = located
        try:
            (head,) = self._parts(member, (begin, min(end, begin + _HEAD)))
        except (OSError, Error, MemoryError):
            return True
        return head.lstrip()[:1] in _JSON_BEGINS

    def _parts(self, member: int, *parts: tuple[int, int]) -> list[bytes]:
        """Return some bytes of a source, or of its content; fewer where it ends.

        Args:
          parts: where each begins and ends.
        Raises:
          OSError, Error: it cannot be read, or another file is there now.
          MemoryError: there is no room to decode it.
        """
        index, number = self.members[member]
        if index.sources[number].compression is not None:
            content = self.open(member)[0]
            assert isinstance(content, BlockReader)
            return [content.read(begin, end) for begin, end in parts]
        with open_regular(index.absolute(index.source_path(number))) as file:
            opened = os.fstat(file.fileno())
            check_source(index, number, opened.st_size, opened.st_mtime_ns)
            found = []
            for begin, end in parts:
                file.seek(begin)
                found.append(file.read(end - begin))
        return found

    def _line(self, index: Index, number: int, record: int, offset: int) -> int | None:
        """Return the line of a record, counted from 1; None if the index does not have it and it cannot be counted.

        Its source may be gone, or memory may have no room to decode it.
        """
        source = index.sources[number]
        if source.lines == source.records:
            return record + 1
        codec = source.compression.codec if source.compression else ""
        try:
            path = index.absolute(index.readable_path(number))
            return line_number(Source(path, source.size, source.mtime_ns, codec=codec), offset)
        except (SourceError, MemoryError):
            return None


def _sample_of(index: Index) -> Sample:
    """Return what the records of an index are, as its format says; malformed parameters may raise anything."""
    return formats.of_index(index).decoder(index.parameters)
