"""Ways to keep the records of a file: a module each, with a `Store`."""

NAMES = (
    "mmapds",
    "plain",
    "mapped",
    "datasets",
    "webdataset",
    "streaming",
    "litdata",
    "bagz",
    "array_record",
    "lance",
    "grain",
)
"""The modules, in the order of the tables; all others are compared with the first."""
