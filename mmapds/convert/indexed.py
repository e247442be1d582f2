"""Records of sources that mmapds can index, read through an index that is removed afterwards."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..arrays.schema import Schema
from ..build_index import build
from ..dataset import payloads
from ..dataset.decode import Decoder
from ..dataset.opening import open as open_dataset
from ..dataset.opening import open_stored
from ..errors import DecodeError, FormatError, SourceError, StaleIndexError
from ..formats.tar import Tar
from ..storage.index_file import Index
from ..storage.numbers import plain_dtype
from ..storage.sources import INDEX_SUFFIX, Roots, StrPath
from .reader import Batch, Reader, Refused


class IndexedReader(Reader):
    """The decoded records of sources that can be indexed.

    Args:
      paths: sources, which are indexed in a hidden file; or indexes, which are read as they are.
      hidden: the path of this file. An index that the sources have is left alone.
      name: the format; by default as `mmapds.build` decides.
      decode: the decoder; by default that of the format.
      roots: directories in which the sources of an index may lie that is among the paths.
      options: of the format.
    """

    def __init__(
        self,
        paths: Sequence[str],
        hidden: str,
        name: str | None,
        decode: str | Decoder | None,
        roots: StrPath | Iterable[StrPath],
        options: Mapping[str, Any],
    ) -> None:
        self._built: Path | None = None
        try:
            if not all(path.endswith(INDEX_SUFFIX) for path in paths):
                self._built = Path(hidden)
                build(paths, out=hidden, format=name, roots=roots, force=True, **options)
                paths, roots = [hidden], Index(hidden).roots_needed()  # the user named these sources
            self._samples = open_dataset(paths, decode=decode, access="sequential", roots=roots)
            self.total: int | None = len(self._samples)
            index = _first_index(paths[0], Roots(roots, paths))
            self.schema = _index_schema(index, self._samples.sources[0]) if decode is None else None
            self._as_record = _tar_record if index.format == Tar.name and decode is None else _record
        except BaseException:
            self.close()
            raise

    def batches(
        self, schema: Schema | None, fields: Container[str] | None = None, defaults: Container[str] = ()
    ) -> Iterator[Batch]:
        """Yield all samples as one batch of dicts; a sample that is not a dict becomes the field "data".

        Raises:
          DecodeError: a record cannot be decoded.
          SourceError: a source changed meanwhile.
        """
        yield Batch(self._records())

    def _records(self) -> Iterator[Mapping[str, Any]]:
        for number in range(len(self._samples)):
            try:
                sample = self._samples[number]
            except StaleIndexError as error:
                changed = str(error).partition("STALE: ")[2].partition("; run:")[0]
                raise SourceError(f"sources: {changed}; run again when nothing writes to them") from None
            try:
                yield self._as_record(sample)
            except ValueError as error:
                raise DecodeError(f"{self.place(number)}: {error}") from error

    def place(self, number: int) -> str:
        """Return where a record lies, as messages say it."""
        return self._samples.place(number)

    def close(self) -> None:
        """Remove the hidden index."""
        if self._built is not None:
            with suppress(OSError):  # the next conversion removes it
                self._built.unlink(missing_ok=True)
            self._built = None

    def __del__(self) -> None:
        self.close()  # a signal may end the conversion before anybody else has the reader


def _first_index(path: str, roots: Roots) -> Index:
    """Return an index, or the first one that a saved view was saved of."""
    found = open_stored(path, roots, "mmap")
    return found if isinstance(found, Index) else found.open_base(0)


def _index_schema(index: Index, source: str) -> Mapping[str, Any] | None:
    """Return the fields that all records have; None if the index does not say.

    Args:
      source: the first one, for the error where array files lack the type.
    """
    if "schema" in index.parameters:
        found: Mapping[str, Any] = index.parameters["schema"]
        return found
    if "dtype" not in index.parameters:
        return None
    numbers = plain_dtype(index.parameters["dtype"])
    dtype = numbers.name
    if numbers.kind in "SUV":
        return {"data": Refused(f"{source}: field 'data'", dtype)}
    shape = index.parameters.get("shape", [None])
    return {"data": (dtype, shape) if shape or dtype.startswith("complex") else dtype}


def _record(sample: Any) -> dict[str, Any]:
    """Return a sample as a dict; a list of one bytes object, as in a tf.train.Example, becomes that object."""
    if not isinstance(sample, dict):
        return {"data": sample}
    alone = {name: value[0] for name, value in sample.items() if type(value) is list and _is_one_of_bytes(value)}
    return sample | alone if alone else sample


def _is_one_of_bytes(values: list[Any]) -> bool:
    return len(values) == 1 and type(values[0]) is bytes


def _tar_record(sample: dict[str, Any]) -> dict[str, Any]:
    """Return the decoded members of a tar's sample; images stay bytes, and each array of an npz becomes a field."""
    del sample["__url__"]
    payloads.decode_members(sample, image=bytes)
    for name in [name for name in sample if name.rpartition(".")[2] == "npz"]:
        parts = {f"{name}.{part}": array for part, array in sample.pop(name).items()}
        if clash := sample.keys() & parts.keys():
            raise FormatError(f"expected fields of different names, found two {min(clash)!r}; rename one")
        sample |= parts
    return sample
