"""The bounds of records as docs/index-file.md describes them, in plain Python."""

import json
import struct

import xxhash

from mmapds.storage.index_file import Index
from tests.support.index_file import rewrite

WIDTHS = (2, 3, 4, 8)


def records_in(width):
    """How many records have their bounds in a group."""
    return 56 // width


def group_of(first, distances, width):
    """A group of a bound and the distances of others from there, whatever they are."""
    numbers = b"".join(distance.to_bytes(width, "little") for distance in distances)
    return (first.to_bytes(8, "little") + numbers).ljust(64, b"\0")


def grouped(bounds, width):
    """The groups of a source; OverflowError if the width does not fit."""
    each, found = records_in(width), []
    for begin in range(0, len(bounds), each):
        group = bounds[begin : begin + each + 1]
        group += [bounds[-1]] * (each + 1 - len(group))
        found.append(group_of(group[0], [bound - group[0] for bound in group[1:]], width))
    return b"".join(found)


def narrowest(bounds):
    """The smallest width that fits, and the groups."""
    for width in WIDTHS:
        try:
            return width, grouped(bounds, width)
        except OverflowError:
            continue
    raise AssertionError(bounds)


def ungrouped(data, width, records):
    """The bounds in the groups of a source."""
    found = []
    for begin in range(0, len(data), 64):
        (first,) = struct.unpack_from("<Q", data, begin)
        numbers = [int.from_bytes(data[begin + 8 + k * width :][:width], "little") for k in range(records_in(width))]
        found += [first, *(first + number for number in numbers[:-1])]
    return found[: records + 1]


def bounds_of(path, number=0):
    """The bounds of a source of an index, read by other code than that of the package."""
    with open(path, "rb") as file:
        data = file.read()
    metadata = json.loads(data[int.from_bytes(data[24:32], "little") :])
    at = metadata["sections"]["offsets"]["offset"]
    for source in metadata["sources"][: number + 1]:
        width, records = source["width"], source["records"]
        begin, at = at, at + (records // records_in(width) + 1) * 64
    return ungrouped(data[begin:at], width, records)


def write_groups(path, groups, *, seal=False):
    """Put other groups into an index, as many bytes as there are; make its checksums right again, or leave them."""
    section = Index(str(path)).sections["offsets"]
    assert len(groups) == section.size
    with open(path, "r+b") as file:
        file.seek(section.offset)
        file.write(groups)
    if not seal:
        return

    def sealed(metadata):
        metadata["sections"]["offsets"]["xxh3"] = xxhash.xxh3_64(groups).hexdigest()
        return metadata

    rewrite(path, metadata=sealed)


def forge_bounds(path, *sources):
    """Give the sources of an index other bounds, as many as there are, and make its checksums right again."""
    widths = [source.width for source in Index(str(path)).sources]
    groups = b"".join(grouped(bounds, width) for bounds, width in zip(sources, widths, strict=True))
    write_groups(path, groups, seal=True)
