"""Opening indexed sources as a dataset: `mmapds.open` and `mmapds.concat`."""

import os
from collections.abc import Iterable

import numpy as np

from ..errors import Error
from ..index.build import build_each
from ..storage.sources import StrPath
from .catalog import Catalog
from .dataset import Dataset, decoder_name, make_dataset
from .decode import Decoder, same
from .origin import Origin, expand_indexed, open_indexes
from .views import ChainedRows, RangeRows


def open(  # noqa: A001 - mmapds.open is the public name
    source_or_index: StrPath | Iterable[StrPath],
    *,
    decode: str | Decoder | None = None,
    access: str = "auto",
    build: bool = False,
) -> "Dataset":
    """Open indexed sources as one dataset.

    Args:
      source_or_index: a source, an index (`.mmx`), a directory, a glob or brace pattern, or a list of these. Records
        are numbered through in that order.
      decode: "json" (orjson), "text" (UTF-8), "bytes", "files" (a dict of the bytes of a tar's members), "wds" (those
        decoded by extension), "tf_example" (see `mmapds.tf_example`), or a picklable callable that takes the bytes of a
        record; by default what the format says: "json" for JSONL, arrays for binary records of a dtype, "files" for
        tars. "torch" gives tensors where the format gives arrays; they share memory with the file too, so they must
        not be written to.
      access: how records will be read. "random" turns the kernel's readahead off, which would fetch 32 pages for every
        one wanted. "sequential" leaves it on: for chunked orders, and whole passes in file order. "auto" is "random"
        plus readahead of our own where reads turn out to be in file order.
      build: build indexes that are missing or stale first, instead of raising.
    Raises:
      SourceError: a source is missing, or a pattern matches nothing.
      IndexMissingError, StaleIndexError: an index must be built first; the message has the command.
      FormatError: an index is damaged, or was written by a newer mmapds.
    """
    given = [source_or_index] if isinstance(source_or_index, str | os.PathLike) else list(source_or_index)
    patterns = [os.fspath(pattern) for pattern in given]
    paths = expand_indexed(patterns)
    if build and paths:
        for _ in build_each(paths):
            pass
    indexes = open_indexes(paths, patterns)
    for index in indexes:
        index.check_current()
    catalog = Catalog(indexes, access)
    return make_dataset(catalog, Origin.of(patterns, indexes), catalog.decoder(decode))


def concat(datasets: Iterable[Dataset]) -> Dataset:
    """Return the datasets one after another as one dataset; views keep their selection.

    Raises:
      Error: there are none, or they differ in decoder or access.
    """
    parts = list(datasets)
    if not parts:
        raise Error("concat() of no datasets")
    decode, access = parts[0]._given_decode, parts[0]._catalog.access
    for part in parts:
        if not same(part._given_decode, decode) or part._catalog.access != access:
            raise Error(
                "concat() of datasets that differ: open them alike; found "
                f"decode={decoder_name(decode)}, access={access!r} and "
                f"decode={decoder_name(part._given_decode)}, access={part._catalog.access!r}"
            )
    indexes = [index for part in parts for index in part._catalog.indexes]
    patterns = [pattern for part in parts for pattern in part._origin.given()]
    catalog, origin = Catalog(indexes, access), Origin.of(patterns, indexes)
    if all(part._rows is None for part in parts):
        return make_dataset(catalog, origin, decode)
    firsts = np.cumsum([0, *(len(part._records) for part in parts)]).tolist()
    rows = [part._rows or RangeRows(range(len(part))) for part in parts]
    return make_dataset(catalog, origin, decode, ChainedRows(zip(firsts, rows, strict=False)))
