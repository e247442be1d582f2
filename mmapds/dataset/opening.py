"""Opening indexed sources as a dataset: `mmapds.open`."""

import os
from collections.abc import Iterable

from ..index.build import build_each
from ..storage.sources import StrPath
from .catalog import Catalog
from .dataset import Dataset, make_dataset
from .decode import Decoder
from .origin import Origin, expand_indexed, open_indexes


def open(  # noqa: A001 - mmapds.open is the public name
    source_or_index: StrPath | Iterable[StrPath],
    *,
    decode: str | Decoder | None = None,
    access: str = "auto",
    build: bool = False,
) -> Dataset:
    """Open indexed sources as one dataset.

    Args:
      source_or_index: a source, an index (`.mmx`), a directory, a glob or brace pattern, or a list of these. Records
        are numbered in that order.
      decode: the decoder, which makes a sample of a record: "json" (orjson), "text" (UTF-8), "bytes", "files" (a dict
        of the bytes of a tar's members), "wds" (those members decoded by extension), "tf_example" (see
        `mmapds.dataset.tf_example`), or a picklable callable that takes the bytes of a record. Each format has a
        default: "json" for JSONL, arrays for binary records with a dtype, "files" for tars. "torch" gives tensors where
        the default gives arrays; they share memory with the file, so they must not be written to.
      access: how records will be read. "random" turns off the kernel's readahead, which would fetch 32 pages for each
        one that is read. "sequential" leaves it on, for chunked orders and whole passes in file order. "auto" is
        "random", with readahead of our own where reads turn out to be in file order.
      build: build missing and stale indexes first, instead of raising.
    Raises:
      SourceError: a source is missing, or a pattern matches nothing.
      IndexMissingError, StaleIndexError: an index must be built first; the message has the command.
      FormatError: an index is damaged, or a newer mmapds wrote it.
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
