"""A source as an index describes it."""

from typing import Any, NamedTuple

from .blocks import Compression
from .bounds import WIDTHS


class BadLines(NamedTuple):
    """Lines of a source that were left out because they are not JSON."""

    lines: int = 0
    """How many; they count among those that were skipped."""
    first: tuple[tuple[int, int], ...] = ()
    """Of the first of them, the line, counted from 1, and the byte where it begins."""

    @classmethod
    def parse(cls, fields: Any) -> "BadLines":
        """Read them from a JSON object.

        Raises:
          KeyError, TypeError, ValueError: a field is missing or has the wrong type.
        """
        found = cls(fields["lines"], tuple((line, byte) for line, byte in fields["first"]))
        numbers = [found.lines, *(number for place in found.first for number in place)]
        if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
            raise TypeError(f"bad of a source: expected integers from 0 to 2**63 - 1, found {fields!r}")
        return found

    def __str__(self) -> str:
        return f"{self.lines} from {', '.join(str(line) for line, _ in self.first[:1]) or 'none'} on"


class IndexedSource(NamedTuple):
    """A source as it was when it was indexed."""

    path: str
    """Relative to the directory that holds the index."""
    size: int
    """Bytes."""
    mtime_ns: int
    fingerprint: str
    """See `fingerprints.fingerprint`."""
    records: int
    lines: int
    smallest: int
    """Bytes in the smallest record, framing included; 0 when there are no records."""
    largest: int
    skipped: int
    """Records left out because they lack a column, or are truncated."""
    first: int
    """Where the first record begins, if all records have one size and the index has no bounds; else 0."""
    xxh3_128: str = ""
    """See `fingerprints.full_hash`; empty where it was not asked for."""
    bad: BadLines = BadLines()
    width: int = 0
    """Bytes of a distance in the groups of its bounds; 0 if the index has no bounds."""
    compression: Compression | None = None
    """None if the source is read as it is."""

    @property
    def content_size(self) -> int:
        """Bytes in which its records lie: those of the file, or of what is compressed there."""
        return self.size if self.compression is None else self.compression.size

    def describe(self) -> dict[str, Any]:
        """Return the JSON object that an index holds."""
        fields = self._asdict()
        if not self.xxh3_128:
            del fields["xxh3_128"]
        if not self.width:
            del fields["width"]
        if self.bad.lines:
            fields["bad"] = self.bad._asdict()
        else:
            del fields["bad"]
        if self.compression is not None:
            fields["compression"] = self.compression._asdict()
        else:
            del fields["compression"]
        return fields

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> "IndexedSource":
        """Read a source from its JSON object; unknown keys are skipped.

        Raises:
          KeyError, TypeError: a field is missing or has the wrong type.
        """
        # Indexes come by the thousands, so what is right is found to be so at once.
        path, mtime_ns, fingerprint = fields["path"], fields["mtime_ns"], fields["fingerprint"]
        numbers = [fields[name] for name in _NUMBERS] + [fields.get("skipped", 0), fields.get("first", 0)]
        xxh3_128, width = fields.get("xxh3_128", ""), fields.get("width", 0)
        bad = BadLines.parse(fields["bad"]) if "bad" in fields else _NO_BAD_LINES
        size, records, lines, smallest, largest, skipped, first = numbers
        compression = None
        if "compression" in fields and type(size) is int:  # else `_check` refuses it
            compression = Compression.parse(fields["compression"], size)
        source = cls(
            path,
            size,
            mtime_ns,
            fingerprint,
            records,
            lines,
            smallest,
            largest,
            skipped,
            first,
            xxh3_128,
            bad,
            width,
            compression,
        )
        texts = type(path) is type(fingerprint) is type(xxh3_128) is str and f"{path}{fingerprint}{xxh3_128}".isascii()
        if (
            not (texts and "\0" not in path)
            or {*map(type, numbers), type(mtime_ns), type(width)} != {int}
            or width not in _WIDTHS
            or not (min(numbers) >= 0 and max(numbers) < 2**63 and -(2**63) <= mtime_ns < 2**63)
        ):
            source._check()
        return source

    def _check(self) -> None:
        """Raise TypeError unless every field has the type and the range it should."""
        for name, value in self._asdict().items():
            if name in ("bad", "compression"):
                continue
            if name == "path":
                expected, fits = "a path in UTF-8", is_path(value)
            elif name in ("fingerprint", "xxh3_128"):
                expected, fits = "hex digits", type(value) is str and value.isascii()
            elif name == "mtime_ns":
                expected, fits = "an integer of 64 bits", type(value) is int and -(2**63) <= value < 2**63
            elif name == "width":
                expected, fits = "2, 3, 4 or 8", type(value) is int and value in _WIDTHS
            else:
                expected, fits = "an integer from 0 to 2**63 - 1", type(value) is int and 0 <= value < 2**63
            if not fits:
                raise TypeError(f"{name} of a source: expected {expected}, found {value!r}")


_NUMBERS = ("size", "records", "lines", "smallest", "largest")
"""Keys of a source that every index has, of integers of 0 or more."""
_NO_BAD_LINES = BadLines()
_WIDTHS = (0, *WIDTHS)


def is_path(value: Any) -> bool:
    """Whether a value can be the path of a file in metadata: a text that UTF-8 can hold, without NUL."""
    if type(value) is not str or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True
