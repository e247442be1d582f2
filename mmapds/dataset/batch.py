"""A batch of named arrays: found and measured, and made into samples only when they are asked for."""

from collections.abc import Callable, Sequence
from typing import Any, overload

from .. import _native
from .array_decoder import of_fields
from .decode import Decoder


class Batch(Sequence[Any]):
    """Samples of named arrays that are made when they are asked for, and not at all by `pad_collate`.

    Equal to a list of them, and sent to another process as such.

    Args:
      records: of all samples, found and measured.
      decode: what makes a sample of a record.
      explain: raises for an error at a position.
    """

    def __init__(self, records: _native.ArrayBatch, decode: Decoder, explain: Callable[[int, Exception], None]) -> None:
        decoder = of_fields(decode)
        assert decoder is not None
        self.records = records
        self.fields = {field.name: (number, field) for number, field in enumerate(decoder.schema.fields)}
        """Number and description of each field, by name."""
        self._decode = decode
        self._explain = explain

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, key: int) -> Any: ...
    @overload
    def __getitem__(self, key: slice) -> list[Any]: ...
    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return [self[k] for k in range(*key.indices(len(self)))]
        try:
            return self._decode(self.records[key])
        except ValueError as error:
            self._explain(key, error)
            raise

    def values(self, name: str) -> list[Any]:
        """Return what every sample has for a field."""
        number, field = self.fields[name]
        if field.shape is not None:
            return [sample[name] for sample in self]
        try:
            return self.records.values(number)
        except ValueError:
            return [sample[name] for sample in self]  # which says of which sample that is

    def __eq__(self, other: object) -> bool:
        return self is other or list(self) == (list(other) if isinstance(other, Batch) else other)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)

    def __repr__(self) -> str:
        return repr(list(self))
