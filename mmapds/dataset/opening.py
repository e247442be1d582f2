"""`mmapds.open`: find, check and open indexes, and choose the decoder of their records."""

from __future__ import annotations  # help() shows them as they are written

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from glob import escape, glob
from importlib.util import find_spec
from typing import Any, NoReturn

from .. import formats
from ..compression.reader import CACHE
from ..errors import Error, IndexMissingError, SourceError, build_command, warn
from ..formats.format import ArrayOf, EncodedOf, FieldsOf
from ..index.build import Request
from ..index.each import build_and_warn
from ..remote.objects import places as places_of
from ..storage import current
from ..storage.digests import BLOCKS
from ..storage.index_file import Index, SavedView, is_saved_view, names_index, open_stored
from ..storage.places import Places
from ..storage.sources import INDEX_SUFFIX, IoChoice, StrPath, check_io, given_twice, io_of, listed, way_to_index
from . import saving
from .catalog import Catalog
from .dataset import Dataset
from .decode import ArrayDecoder, Decoder, RecordArray, TensorDecoder, is_same_decoder, resolve
from .fields import Fields, StoredFields, records_of
from .indexed import OnError, make_dataset
from .payloads import EncodedSample


def open(  # noqa: A001 - mmapds.open is the public name
    source_or_index: StrPath | Iterable[StrPath],
    *,
    decode: str | Decoder | None = None,
    access: str = "auto",
    check: str = "stat",
    io: IoChoice = "mmap",
    block_cache: int = CACHE,
    on_error: OnError = "raise",
    build: bool = False,
    roots: StrPath | Iterable[StrPath] = (),
    cache: StrPath | None = None,
    cache_bytes: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Open indexed sources as one dataset.

        ds = mmapds.open("train.jsonl")
        sample, batch, last = ds[7], ds.take([3, 1, 4]), ds[-100:]

    Args:
      source_or_index: a source, an index or saved view (`.mmx`), a directory, a pattern, or a list of these;
        the order of the list is that of the records. URLs name objects of a store: see docs/remote.md.
      decode: the decoder from record to sample: "json" (orjson), "text" (UTF-8), "bytes", "files" (a dict of the bytes
        of a tar's members), "wds" (members decoded by extension), "pil" (the same, or the values of an MDS sample,
        with images as RGB), "tf_example", `Fields`, or a picklable function of the bytes. Each format has a default:
        "json" for JSONL, arrays for binary records with a dtype, "files" for tars, values for MDS. "torch" gives
        tensors instead of arrays; do not write to them, as they share memory with the file.
      access: "random" turns off the kernel's readahead. "sequential" leaves it on, for chunked orders and passes in
        file order. "auto" is "random", with our own readahead for reads in order.
      check: how to compare each source with the one that was indexed: see docs/checks.md. "stat" compares size and
        time; if the time differs, it compares the fingerprint, a sample above 256 KiB, and warns. "sample" compares all
        fingerprints. "full" compares hashes, which `build(..., hash=True)` stores. "none" compares nothing.
      io: "mmap" maps files, which is fastest. "pread" copies each record by a system call, for network file systems
        with unreliable maps. A dict maps patterns of absolute paths to these; the first match counts.
      block_cache: bytes of decoded blocks of compressed sources to cache in each process (LRU).
      on_error: "skip" makes `take` skip records that cannot be decoded, with a warning, and add them to `ds.skipped`.
        `len`, positions and states do not change, and `ds[i]` raises. See docs/formats.md.
      build: build missing and stale indexes first, instead of raising: see `mmapds.build`. Views are not saved again.
      roots: directories that may hold sources of an index, besides its own directory and `MMAPDS_ROOTS`. Sources in
        `source_or_index` need no root. A stranger's index could name any file of yours: see SECURITY.md.
      cache: the directory for objects of stores, on a local disk; all ranks and jobs of a node share it.
      cache_bytes: the limit of the cache, such as "200GB"; none by default.
      storage_options: of the store, such as `{"endpoint": ..., "region": ...}`; by default its environment variables.
    Raises:
      SourceError: a source is missing, a pattern matches nothing, or an index names a file outside the roots.
      IndexMissingError, StaleIndexError: an index must be built first; the message has the command.
      FormatError: an index is damaged, or a newer mmapds wrote it.
      Error: `check` is "full" and an index has no hashes.
    """
    for name, value, known in (("check", check, current.CHECKS), ("on_error", on_error, ("raise", "skip"))):
        if value not in known:
            raise Error(f"{name} = {value!r}, expected one of {', '.join(map(repr, known))}")
    check_io(io)
    patterns = [os.fspath(pattern) for pattern in listed(source_or_index)]
    places = places_of(roots, cache, cache_bytes, storage_options)
    paths = places.expand(patterns, (*formats.SUFFIXES, INDEX_SUFFIX), warn)
    if line := given_twice(paths):
        warn(line)
    if build and paths:
        build_and_warn([path for path in paths if not is_saved_view(path)], Request(by_sample=True, places=places))
    indexes, rows = saving.unfolded(_opened(paths, patterns, places, io))
    _warn_of_samples(current.check(indexes, check), patterns)
    return make_dataset(Catalog(indexes, access, io, block_cache), _decoder(indexes, decode), on_error, rows)


# ---- indexes --------------------------------------------------------------------------------------------------------


def _opened(paths: Sequence[str], patterns: Sequence[str], places: Places, io: IoChoice) -> list[Index | SavedView]:
    indexes: list[Index | SavedView] = []
    missing: list[str] = []
    directory = os.getcwd()
    places.prepare(map(_index_path, paths))
    for path in paths:
        index_path = _index_path(path)
        try:
            how = io_of(io, os.path.join(directory, index_path))
            indexes.append(open_stored(index_path, places, how, given=path))
        except IndexMissingError:
            missing.append(path)
    if missing:
        refuse_missing(missing, patterns)
    _check_given_once(paths, patterns, indexes)
    return indexes


def refuse_missing(missing: list[str], patterns: Sequence[str]) -> NoReturn:
    """Raise IndexMissingError for the paths without an index; the message names the command for all patterns."""
    first, more = missing[0], f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
    if os.path.exists(first):
        formats.check_in_place(first)
    if first.endswith(INDEX_SUFFIX):
        raise IndexMissingError(f"{first}{more}: no such index; {way_to_index(first)}")
    command = build_command(missing if len(missing) == 1 else list(patterns))
    state = "not indexed yet;"
    for path in glob(os.path.join(escape(os.path.dirname(first)), "*" + INDEX_SUFFIX)):
        if not os.path.exists(path.removesuffix(INDEX_SUFFIX)):  # an index of several sources, as `-o` makes
            with suppress(Error):
                index = Index(path)
                if first in map(index.source_path, range(len(index.sources))):
                    state = f"not indexed alone; open {path}, which has it, or"
    raise IndexMissingError(f"{first}{more}: {state} run: {command}")


def _index_path(path: str) -> str:
    """Return the path of a source's index: beside the source, or beside the target of a link."""
    beside = path if names_index(path) else path + INDEX_SUFFIX
    followed = os.path.realpath(path) + INDEX_SUFFIX if os.path.islink(path) else beside
    return beside if os.path.lexists(beside) or not os.path.exists(followed) else followed


def _check_given_once(paths: Sequence[str], patterns: Sequence[str], indexes: Sequence[Index | SavedView]) -> None:
    """Raise SourceError for a source given by name and in an index; warn if two indexes of a pattern share one."""
    by_name = {path for path in paths if not path.endswith(INDEX_SUFFIX)}
    if len(by_name) == len(paths):
        return
    same = os.path.realpath if by_name else os.path.normpath  # fast path: a directory may have thousands of indexes
    holders, named, remark = {same(path): path for path in by_name}, set(patterns), ""
    for path, index in zip(paths, indexes, strict=True):
        if path in by_name or (isinstance(index, SavedView) if by_name else path in named):
            continue
        for base in index.open_bases() if isinstance(index, SavedView) else [index]:
            for source in map(base.source_path, range(len(base.sources))):
                holder = holders.setdefault(same(base.absolute(source)), path)
                if holder in by_name:
                    raise SourceError(
                        f"{path}: expected each source once, found {source} by its name and as one of this index"
                    )
                if holder != path and path not in named and not remark:
                    remark = f"{source}: its records may come more than once, as {holder} and {path} have some"
    if remark:
        warn(remark)


def _warn_of_samples(sampled: Sequence[tuple[Index, int]], patterns: list[str]) -> None:
    """Warn of sources with another mtime whose bytes were compared by sample."""
    if sampled:
        index, number = sampled[0]
        more = f" and {len(sampled) - 1:,} more" if len(sampled) > 1 else ""
        way = index.way_to_rebuild() if index.computed_columns else f"run: {build_command(patterns)}"
        what = f"mtime changed, sampled bytes are equal ({BLOCKS} blocks)"
        warn(f"{index.source_path(number)}{more}: {what}; {way} (or give check='sample')")


# ---- decoders -------------------------------------------------------------------------------------------------------


def _decoder(indexes: Sequence[Index], given: str | Decoder | None) -> str | Decoder:
    """Return the given decoder, or that of the format."""
    for index in indexes:
        formats.check_decoder(index, given)
    if given == "pil" and find_spec("PIL") is None:
        raise Error("decode = 'pil' needs Pillow; run: pip install pillow")
    if given not in (None, "torch", "pil") and not isinstance(given, Fields):
        return given
    found = [_decoder_of(index, given) for index in indexes]
    for index, decode in zip(indexes, found, strict=True):
        if not is_same_decoder(decode, found[0]):
            raise Error(
                f"{index.path}: expected {records_of(found[0])}, as in {indexes[0].path}, found {records_of(decode)}; "
                "open each on its own"
            )
    return TensorDecoder(resolve(found[0])) if given == "torch" else found[0]


def _decoder_of(index: Index, given: str | Fields | None) -> str | Decoder:
    """Return the default decoder of an index, or the decoder of the given fields or of images."""
    fields = given if isinstance(given, Fields) else None
    with index.reporting_malformed_metadata():
        sample = formats.of_index(index).decoder(index.parameters)
        if isinstance(sample, FieldsOf):
            return ArrayDecoder(sample.schema) if fields is None else StoredFields(fields, sample.schema, index.path)
        if fields is not None:
            return fields
        if isinstance(sample, EncodedOf):
            return EncodedSample(sample.encodings, images=given == "pil")
        if given == "pil":
            return given
        return RecordArray(sample.dtype, sample.shape) if isinstance(sample, ArrayOf) else sample
