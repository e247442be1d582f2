"""URLs of objects: which are refused, which match a pattern, and what a store says of one."""

import re
from typing import NamedTuple
from urllib.parse import unquote

from ..errors import SourceError

SCHEMES = ("s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss", "http", "https", "file", "hf")
"""The protocols that are known to work; fsspec may know others."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
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
    """Return a URL; raise SourceError if it has credentials, steps such as `..`, or no bucket.

    Steps are also found in escapes, such as `%2e%2e`, which servers unquote.
    """
    if _CONTROL.search(url):
        raise SourceError(f"{url!r}: expected a URL without control characters")
    scheme, rest = url.split("://", 1)
    host, _, path = rest.partition("/")
    shown = f"{scheme}://{host.rpartition('@')[2]}/..."
    if ("@" in host and scheme not in _IN_ACCOUNT) or ":" in host.rpartition("@")[0]:
        raise SourceError(f"{shown}: expected no credentials in a URL; give them by the environment or storage_options")
    if scheme in ("http", "https") and re.search(r"[?#]", path):
        raise SourceError(f"{shown}: expected no query or fragment in a URL, as it may hold a signature")
    if bool(host) == (scheme == "file"):
        expected = "an absolute path after file://" if host else f"a bucket or a host after {scheme}://"
        raise SourceError(f"{shown if host else url}: expected {expected}")
    plain = unquoted(path)
    if {".", ".."} & set(plain.split("/")) or "//" in plain or "\\" in plain or _CONTROL.search(plain):
        raise SourceError(f"{url}: expected a path without '.', '..', '//', backslashes and control characters")
    if scheme in ("http", "https") and any(plain.count(each) != path.count(each) for each in "./"):
        raise SourceError(f"{url}: expected a path without escapes of '.' and '/'")
    return url


def unquoted(text: str) -> str:
    """Return a text without escapes such as `%2e`, nor escapes of these."""
    while (found := unquote(text)) != text:
        text = found
    return text


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
