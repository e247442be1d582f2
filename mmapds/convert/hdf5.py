"""HDF5: datasets as columns, or every dataset or group of them as a record."""

from collections.abc import Container, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from ..arrays.schema import Schema
from ..errors import Error, FormatError, either
from .reader import Batch, FileReader, Refused, cannot_be_read

_SHOWN = 8  # names in a message
_CHUNK_BYTES = 8 << 20  # of a dataset's chunks, kept as decompressed: text is read in parts of a chunk


class Hdf5Reader(FileReader):
    """The records of some HDF5 files.

    With "rows", record k has entry k of every dataset below the group, and a field's name is the path of its dataset.
    With "groups", every dataset in the group is a record, its values being the field "data". So is every group below
    that holds datasets, which are its fields. Attributes are fields too, and the path is the field "__key__".

    See `hdf5_types` for what becomes of their types.

    Raises:
      Error: h5py is missing.
      FormatError: a source cannot be read, or the group is not there.
    """

    TITLE = "HDF5"

    def __init__(self, paths: Sequence[str], records: str = "rows", group: str = "/") -> None:
        super().__init__(paths)
        if records not in ("rows", "groups"):
            raise FormatError(f"records = {records!r}, expected 'rows' or 'groups'")
        self._group, self._are_rows = group, records == "rows"
        if self._are_rows:
            self.total = sum(self._describe(path) for path in paths)

    def _describe(self, path: str) -> int:
        """Add the fields of a file's rows to the schema; return how many rows it has."""
        with self._reading(path) as root:
            from .hdf5_values import row_fields  # h5py is optional

            fields, count = row_fields(path, root)
            self._add_fields(path, fields.items())
            return count

    @contextmanager
    def _reading(self, path: str) -> Iterator[Any]:
        try:
            import h5py  # optional: the extra mmapds[hdf5]
        except ImportError:
            raise Error(f"{path}: reading HDF5 needs h5py; run: pip install 'mmapds[hdf5]'") from None
        try:
            with h5py.File(path, "r", rdcc_nbytes=_CHUNK_BYTES) as file:
                from .hdf5_values import member  # h5py is optional

                try:
                    root = member(file, self._group)
                except KeyError:
                    root = None
                if not isinstance(root, h5py.Group):
                    shown = [*islice(file, _SHOWN), *(["..."] if len(file) > _SHOWN else [])]
                    found = "a dataset" if root is not None else ", ".join(shown) or "an empty file"
                    raise FormatError(
                        f"{path}: expected a group {self._group!r}, found {found}; choose one with "
                        f"{either('--group PATH', 'group=...')}"
                    )
                yield root
        except Error:
            raise
        except (MemoryError, OSError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise cannot_be_read(path, self.TITLE, error) from error

    def _read(
        self, path: str, schema: Schema | None, fields: Container[str] | None, defaults: Container[str]
    ) -> Generator[Batch, None, int]:
        wanted = fields if schema is None else [field.name for field in schema.fields]
        count = 0
        with self._reading(path) as root:
            from .hdf5_values import group_records, rows  # h5py is optional

            if self._are_rows:

                def counted() -> Iterator[Mapping[str, Any]]:
                    nonlocal count
                    count = yield from rows(path, root, wanted)

                yield Batch(counted())
                return count
            for record in group_records(root, wanted):
                if schema is not None:
                    _check_types(record, schema)
                yield Batch([record])
                count += 1
            return count


def _check_types(record: Mapping[str, Any], schema: Schema) -> None:
    """Raise FormatError if array files lack the type of a field of a record."""
    refused = {name: value for name, value in record.items() if isinstance(value, Refused)}
    if refused:
        raise next(iter(refused.values())).error(sorted(schema.names - refused.keys()))
