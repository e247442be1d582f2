"""URLs of objects: which are refused, which match a pattern, and what a store says of one."""

import re
from typing import NamedTuple

from ..errors import SourceError

SCHEMES = ("s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss", "http", "https", "file", "hf")
"""The protocols that are known to work; fsspec may know others."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_IN_ACCOUNT = ("abfs", "abfss", "az", "azure")  # `abfss://container@account.dfs.core.windows.net/path`
_GLOB = re.compile(r"[*?\[]")


class ObjectHead(NamedTuple):
    """An object as its store describes it."""

    url: str
    size: int  # bytes
    mtime_ns: int
    etag: str


class MissingObjectError(SourceError):
    """A store has no such object; it is also a SourceError."""


def checked(url: str) -> str:
    """Return a URL; raise SourceError if it has credentials, steps such as `..`, or no bucket."""
    if _CONTROL.search(url):
        raise SourceError(f"{url!r}: expected a URL without control characters")
    scheme, rest = url.split("://", 1)
    host, _, path = rest.partition("/")
    shown = f"{scheme}://{host.rpartition('@')[2]}/..."
    if ("@" in host and scheme not in _IN_ACCOUNT) or ":" in host.rpartition("@")[0]:
        raise SourceError(f"{shown}: expected no credentials in a URL; give them by the environment or storage_options")
    if scheme in ("http", "https") and re.search(r"[?#]", path):
        raise SourceError(f"{shown}: expected no query or fragment in a URL, as it may hold a signature")
    if not host and scheme != "file":
        raise SourceError(f"{url}: expected a bucket or a host after {scheme}://")
    if {".", ".."} & set(path.split("/")) or "//" in path or "\\" in path:
        raise SourceError(f"{url}: expected a path without '.', '..', '//' and backslashes")
    return url


def is_pattern(url: str) -> bool:
    """Whether a URL has a wildcard."""
    return _GLOB.search(url) is not None


def prefix_of(pattern: str) -> str:
    """Return the directories of a pattern before its first wildcard; a listing begins there."""
    found = _GLOB.search(pattern)
    return pattern[: pattern.rfind("/", 0, found.start()) + 1] if found else pattern


def matcher(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a pattern: `*` and `?` stay within a directory, `**` does not."""
    text = "".join(
        {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(part) or _class_or_text(part)
        for part in re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", pattern)
    )
    return re.compile(f"{text}\\Z")


def _class_or_text(part: str) -> str:
    if len(part) > 2 and part.startswith("["):
        inside = part[1:-1].replace("\\", r"\\")
        return f"[{'^' + inside[1:] if inside[0] == '!' else inside}]"
    return re.escape(part)
