import json
import sys
from pathlib import Path

import pytest

import mmapds

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def write(tmp_path):
    """Write a file of bytes or of JSON records and return its path."""

    def write(content, name="train.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(content, bytes):
            content = b"".join(json.dumps(record).encode() + b"\n" for record in content)
        path.write_bytes(content)
        return str(path)

    return write


@pytest.fixture
def opened(write):
    """Write, index and open."""

    def opened(content, name="train.jsonl", **options):
        return mmapds.open(write(content, name), build=True, **options)

    return opened
