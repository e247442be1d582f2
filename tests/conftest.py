import json
import os

import pytest
from hypothesis import settings

import mmapds

pytest.register_assert_rewrite("tests.support")
# A commit passes or fails, whenever it is tested: examples are the same each time. `HYPOTHESIS_PROFILE=explore` draws
# others. How long an example takes tells how busy the machine is.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


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
