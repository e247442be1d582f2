"""Records of whatever mmapds indexes, by way of an index that is gone afterwards."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..arrays.schema import Schema
from ..build_index import build
from ..dataset import webdataset
from ..dataset.decode import Decoder
from ..dataset.opening import open as open_dataset
from ..errors import DecodeError, SourceError, StaleIndexError
from ..formats.tar import Tar
from ..storage.index_file import Index
from ..storage.sources import INDEX_SUFFIX

_AT_ONCE = 256  # records


class Reader:
    """The records of sources that can be indexed, decoded.

    Args:
      paths: sources; or indexes, which are read as they are.
      beside: their index lies next to this file, hidden; one that they have already is left alone.
      name: the format; by default as `mmapds.build` decides.
      decode: what makes a sample of a record.
      options: of the format.
    """

    def __init__(
        self,
        paths: Sequence[str],
        beside: str,
        name: str | None,
        decode: str | Decoder | None,
        options: Mapping[str, Any],
    ) -> None:
        self._built: Path | None = None
        try:
            if not all(path.endswith(INDEX_SUFFIX) for path in paths):
                parent, file = os.path.split(beside)
                hidden = os.path.join(parent, f".{file}.{os.urandom(4).hex()}{INDEX_SUFFIX}")
                self._built = Path(hidden)
                build(paths, out=hidden, format=name, **options)
                paths = [hidden]
            self._samples = open_dataset(paths, decode=decode, access="sequential")
        except BaseException:
            self.close()
            raise
        self.total: int | None = len(self._samples)
        index = Index(paths[0])
        self.schema = _described(index) if decode is None else None
        self._fields = _members if index.format == Tar.name and decode is None else _fields

    def records(self, schema: Schema | None) -> Iterator[Mapping[str, Any]]:
        """Yield every record as a dict; a sample that is none as the field "data".

        Raises:
          DecodeError: one cannot be decoded.
          SourceError: a source changed.
        """
        for begin in range(0, len(self._samples), _AT_ONCE):
            numbers = range(begin, min(begin + _AT_ONCE, len(self._samples)))
            try:
                samples = self._samples.__getitems__(numbers)
            except StaleIndexError as error:
                changed = str(error).partition("STALE: ")[2].partition("; run:")[0]
                raise SourceError(f"{changed}; run again when nothing writes to it") from None
            for number, sample in zip(numbers, samples, strict=True):
                try:
                    yield self._fields(sample)
                except ValueError as error:
                    raise DecodeError(f"{self.place(number)}: {error}") from error

    def place(self, number: int) -> str:
        """Where a record lies."""
        return self._samples._place(number)

    def close(self) -> None:
        """Remove the index."""
        if self._built is not None:
            self._built.unlink(missing_ok=True)


def _described(index: Index) -> Mapping[str, Any] | None:
    """The fields, where all records have the same because the format says so."""
    if "schema" in index.parameters:
        found: Mapping[str, Any] = index.parameters["schema"]
        return found
    if "dtype" not in index.parameters:
        return None
    dtype = np.dtype(index.parameters["dtype"]).name
    shape = index.parameters.get("shape", [None])
    return {"data": (dtype, shape) if shape else dtype}


def _fields(sample: Any) -> dict[str, Any]:
    """A sample as a dict; bytes that are alone in their list, as in a tf.train.Example, as a value."""
    if not isinstance(sample, dict):
        return {"data": sample}
    alone = {name: value[0] for name, value in sample.items() if type(value) is list and _is_one_of_bytes(value)}
    return sample | alone if alone else sample


def _is_one_of_bytes(values: list[Any]) -> bool:
    return len(values) == 1 and type(values[0]) is bytes


def _members(sample: dict[str, Any]) -> dict[str, Any]:
    """The members of a sample of a tar, decoded; images keep their bytes, each array of an npz becomes a field."""
    del sample["__url__"]
    webdataset.decode(sample, images=False)
    for name in [name for name in sample if name.rpartition(".")[2] == "npz"]:
        sample |= {f"{name}.{part}": array for part, array in sample.pop(name).items()}
    return sample
