"""Values as JSON, and frozen answers: what a version of mmapds gave, by which the next ones are compared.

A case is a function of no arguments, which runs in a directory of sources (see `golden`) and returns what is to
be frozen. A function in what it returns stands for what that returns, or for the error that it raises. Long values are
frozen as hashes.
"""

import json
import os
import re
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from contextlib import chdir

import numpy as np
from xxhash import xxh3_64_hexdigest

import mmapds
from tests.support import golden
from tests.support.files import DATA

_LONGEST, _NUMBERS = 160, 12  # characters, bytes and numbers that are frozen as they are


class Cases(dict):
    """Cases by name, whose answers lie in a file of tests/data, a line each."""

    def __init__(self, name):
        self.path = DATA / f"{name}-v1.jsonl"

    def frozen(self):
        """Return the frozen answers by name."""
        return dict(map(json.loads, self.path.read_text("utf-8").splitlines()))

    def freeze(self):
        """Write the answers anew."""
        with tempfile.TemporaryDirectory() as directory, chdir(directory):
            golden.prepare(directory)
            found = {name: answer(function) for name, function in self.items()}
        lines = [json.dumps(each, ensure_ascii=False) + "\n" for each in found.items()]
        self.path.write_text("".join(lines), "utf-8")


def plain(value):
    """Return a value as JSON, from which its type, dtype, shape and content can be told."""
    if value is None or type(value) in (bool, int, float):
        return value
    if type(value) is str:
        return value if len(value) <= _LONGEST else f"<{len(value)} characters {hashed(value.encode())}>"
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        shown = repr(data)[2:-1] if len(data) <= _LONGEST // 4 else hashed(data)
        return f"<{type(value).__name__} {len(data)}: {shown}>"
    if isinstance(value, np.ndarray | np.generic):
        return f"<{_array(value)}>"
    if isinstance(value, mmapds.Location):
        block = [value.block] if hasattr(value, "block") else []
        return {"source": value.source, "offset and size": [value.offset, value.size, *block]}
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, Exception):
        return cleaned(f"{type(value).__name__}: {value}")
    if isinstance(value, Sequence):
        return [plain(each) for each in value]
    return answer(value) if callable(value) else cleaned(f"<{type(value).__name__} {value}>")


def _array(array):
    kind = "scalar"
    if isinstance(array, np.ndarray):
        kind = "array" if array.flags.writeable else "fixed"
    if array.dtype == object:
        shown = json.dumps(plain(array.tolist()))
    elif array.size <= _NUMBERS:
        shown = json.dumps(array.tolist(), default=str, ensure_ascii=False)
    else:
        shown = hashed(np.ascontiguousarray(array).tobytes())
    return f"{kind} {array.dtype} {array.shape} {shown}"


def hashed(data):
    return f"#{xxh3_64_hexdigest(data)[:7]}"


def digest(value):
    """Return a hash of all of a value, for what is long."""
    return hashed(text(plain(value)).encode())


def text(found):
    """Return JSON as text, by which an int, a float and a bool differ."""
    return json.dumps(found, indent=1, ensure_ascii=False)


def differing(found, frozen, name):
    """Yield the leaves of an answer that are not what was frozen, each with its name."""
    if isinstance(found, dict) and isinstance(frozen, dict) and [*found] == [*frozen]:
        for part in found:
            yield from differing(found[part], frozen[part], f"{name} / {part}")
    elif text(found) != text(frozen):
        yield f"{name}: expected {text(frozen)}, found {text(found)}"


def cleaned(message):
    """Return a message without what differs between machines and versions of libraries."""
    found = message.replace(os.getcwd() + os.sep, "").replace(os.getcwd(), ".")
    found = re.sub(r"not JSON: [^;]*?: line (\d+ column \d+)", r"not JSON: REASON: line \1", found)
    return re.sub(r"(not a readable \w+ file|not an \.npy file|not gzip|not zstd): [^;]*", r"\1: REASON", found)


def answer(function):
    """Return what a function returns as JSON, with its warnings; or the error that it raises."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", ResourceWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            found = plain(function())
        except Exception as error:
            found = plain(error)
    told = [cleaned(str(each.message)) for each in caught[:1]] + [len(caught) - 1] * (len(caught) > 1)
    return {"found": found, "warnings": told} if told else found
