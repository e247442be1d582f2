"""Read files that hold one sample each: `.pt`, `.npz` and `.safetensors`, one after another."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pickle import UnpicklingError
from typing import Any

from ..dataset.payloads import arrays_of
from ..errors import FormatError
from ..storage.sources import open_regular
from .reader import Batch, Reader, Rules, as_record


class FilesReader(Reader):
    """Reads a record from each file: its arrays by name, and `__key__`, the file's name without the suffix.

    Args:
      decode: returns the sample in the bytes of a file; None for a file of its format, without pickled objects.
    """

    def __init__(self, paths: Sequence[str], name: str, decode: Callable[[bytes], Any] | None) -> None:
        super().__init__(paths, name, "file")
        self.total = len(paths)
        self._decode = decode or _LOADS[name]
        if decode is None and name == "safetensors":
            import safetensors.torch  # noqa: F401 - it is optional, so that its lack is said before the first file

    def place(self, number: int) -> str:
        return self._paths[number]

    def _read(self, path: str, wanted: Container[str] | None, rules: Rules | None) -> Iterator[Batch]:
        with self._naming(path), open_regular(path) as file:
            try:
                sample = as_record(self._decode(file.read()))
            except UnpicklingError:
                expected = "tensors, numbers, text and dicts of these, found other objects of Python, or damage"
                way = "give decode=, a function of the bytes of a file"
                raise FormatError(f"{path}: expected {expected}; {way}") from None
        yield Batch(1, [{"__key__": os.path.splitext(os.path.basename(path))[0], **sample}])


def _pt(data: bytes) -> Any:
    import torch  # start-up time

    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _safetensors(data: bytes) -> Mapping[str, Any]:
    import safetensors.torch  # optional

    found: Mapping[str, Any] = safetensors.torch.load(data)
    return found


_LOADS: dict[str, Callable[[bytes], Any]] = {"pt": _pt, "npz": arrays_of, "safetensors": _safetensors}
