"""Tests that cannot run under a sanitizer, of `make test-asan` and `make test-tsan`, and why."""

import re
from pathlib import Path

import pytest


def sanitized():
    """Whether this process runs under a sanitizer, which maps terabytes for itself and handles signals."""
    maps = Path("/proc/self/maps")
    return maps.exists() and re.search("lib[at]san", maps.read_text()) is not None


limits_memory = pytest.mark.skipif(sanitized(), reason="sanitizers need more than any limit of memory")
raises_sigbus = pytest.mark.skipif(sanitized(), reason="sanitizers handle SIGBUS in their own way")
