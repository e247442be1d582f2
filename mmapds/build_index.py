"""Building indexes: `mmapds.build`."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from . import formats
from .index.build import ColumnRequest, build_each
from .storage.index_file import Index
from .storage.sources import StrPath, expand

if TYPE_CHECKING:
    from pathlib import Path

Column = str | Callable[[Any], float]
"""What a column is made of: an expression, or a callable that takes a sample."""


def build(
    sources: StrPath | Iterable[StrPath],
    *,
    out: StrPath | None = None,
    format: str | None = None,  # noqa: A002 - the field's word, and what the command line calls it
    length: Column | None = None,
    columns: Mapping[str, Column] | None = None,
    missing: str | float | None = None,
    validate: bool | None = None,
    hash: bool = False,  # noqa: A002 - what the command line calls it
    workers: int | None = None,
    force: bool = False,
    **parameters: Any,
) -> "Path | list[Path]":
    """Index sources in place; an index that is up to date is kept, also where a source is a copy with another time.

    Args:
      sources: paths, directories, globs or brace patterns (`part-{000..099}.jsonl`). The path of an index means that
        index, which is built again if its sources changed.
      out: one combined index for all sources; by default each gets its own, `train.jsonl.mmx` beside `train.jsonl`.
      format: how records are framed; by default the suffix decides.
      length: the column that token budgets are planned by; the same as `columns={"length": ...}`. Lengths are integers
        of 0 or more; the index also gets their order, so that samplers do not sort.
      columns: name to a number for each record: an expression (see `mmapds.formats.measuring`), measured while records
        are scanned; or a picklable callable that takes the decoded sample and returns a number, run in other processes.
      missing: what to do with a record that lacks a field an expression names: "error" (the default), "skip" to leave
        the record out of the index, or a number to store instead.
      validate: check that every record is JSON from its first byte to its last.
      hash: store a hash of each source, for `open(..., check="full")` and `--verify`, from now on.
      workers: threads that scan, also within one file; all cores by default.
      force: build even if an index is up to date, and without the columns that were computed in Python. An index keeps
        the expressions it was built with; delete it to drop them.
      **parameters: options of the format, such as `record_bytes`; see docs/formats.md.
    Returns:
      The index's path; a list of them for several sources without `out`.
    Raises:
      SourceError: a source is missing, unreadable, compressed, not a regular file, or changes meanwhile.
      ColumnError: a column cannot be measured; the message has the place of the record.
      DecodeError: a record to measure or validate is not JSON.
      Error: an index cannot be written.
    """
    from pathlib import Path  # start-up time: it takes as long as indexing 40 MB

    wanted = {**({"length": length} if length is not None else {}), **(columns or {})}
    expressions = {name: text for name, text in wanted.items() if isinstance(text, str)}
    computed = {name: compute for name, compute in wanted.items() if not isinstance(compute, str)}
    request = ColumnRequest(expressions, missing, validate, tuple(computed), hash)
    paths = expand(sources, formats.SUFFIXES)
    built = []
    for done in build_each(
        paths, out=out, format_name=format, options=parameters, request=request, workers=workers, force=force
    ):
        built.append(Path(done.summary.path))
        for name, compute in computed.items():
            if done.fresh or name not in Index(done.summary.path).columns:
                from .columns import add_column  # start-up time: it loads NumPy and datasets

                add_column(done.summary.path, name, compute, workers=workers)
    return built[0] if len(built) == 1 else built
