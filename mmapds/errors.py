"""The errors mmapds raises. Each message says where, what was found, what was expected and what to do."""


class Error(Exception):
    """Base of every error that mmapds defines."""


class SourceError(Error):
    """A source is missing, unreadable, not a regular file, compressed, or changed while it was read."""


class IndexMissingError(Error):
    """There is no index for a source yet; the message has the command that builds it."""


class StaleIndexError(Error):
    """The source changed after it was indexed; the message has the command that rebuilds the index."""


class FormatError(Error, ValueError):
    """An index or a source is damaged or from a newer version, or a format, a schema or a record is not as expected."""


class DecodeError(Error, ValueError):
    """A record could not be decoded; the message has its source, line, byte offset and the parser's reason."""


class ColumnError(Error, ValueError):
    """A column cannot be measured, or a dataset does not have it."""


class KeyMissingError(Error, KeyError):
    """No record of a dataset has the key that was looked for."""

    __str__ = Exception.__str__  # a KeyError shows its argument as code


class OrderError(Error, ValueError):
    """An order or a sampler cannot be made of these arguments."""


class CollateError(Error, ValueError):
    """Samples cannot be made into one batch; the message says which of them, and where in them."""


class StateError(Error, ValueError):
    """A state does not belong to the sampler it was given to; the message says in what they differ."""
