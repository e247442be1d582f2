"""The errors that mmapds raises. A message says where, what was expected, what was found, and what to run."""


class Error(Exception):
    """Base of every error that mmapds defines."""


class SourceError(Error):
    """A source is missing, unreadable, not a regular file, compressed, outside the roots, or it changed meanwhile."""


class IndexMissingError(Error):
    """A source is not indexed yet; the message has the command that builds the index."""


class StaleIndexError(Error):
    """The source changed after it was indexed; the message has the command that rebuilds the index."""


class FormatError(Error, ValueError):
    """An index or a source is damaged or from a newer version, or a format, a schema or a record is not as expected."""


class DecodeError(Error, ValueError):
    """A record could not be decoded; the message has its source, line, byte offset and the parser's reason."""


class ColumnError(Error, ValueError):
    """A column cannot be measured, or a dataset does not have it."""


class KeyMissingError(Error, KeyError):
    """A dataset has no record with the key."""

    __str__ = Exception.__str__  # KeyError's own shows the repr of the message


class OrderError(Error, ValueError):
    """The arguments of an order, a sampler or a loader are wrong or contradict each other."""


class CollateError(Error, ValueError):
    """Samples do not fit into one batch; the message says which sample, and where in it."""


class StateError(Error, ValueError):
    """A state belongs to another sampler; the message says how the two differ."""
