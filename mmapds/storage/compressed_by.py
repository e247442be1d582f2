"""What a file is compressed by, as its name and its first bytes say."""

import re

CODECS: dict[str, tuple[str, ...]] = {"gzip": (".gz", ".bgz"), "zstd": (".zst",)}
"""What sources may be compressed by, and what their names end in."""
_OF_TARS = {".tgz": "gzip", ".tzst": "zstd"}  # short for .tar and the suffix of a codec


def without_codec(path: str) -> str:
    """Return a file's name without the suffix that says what it is compressed by; case does not count."""
    for suffixes in CODECS.values():
        for suffix in suffixes:
            if path.lower().endswith(suffix):
                return path[: -len(suffix)]
    return re.sub(r"\.(tgz|tzst)$", ".tar", path, flags=re.IGNORECASE)


def named_codec(path: str) -> str:
    """Return what a file is compressed by, as its name says; empty if that says nothing. Case does not count."""
    suffixes = {suffix: codec for codec, each in CODECS.items() for suffix in each} | _OF_TARS
    return next((codec for suffix, codec in suffixes.items() if path.lower().endswith(suffix)), "")


def codec_of(head: bytes) -> str:
    """Return what a file is compressed by, by its first 4 bytes; empty if by none of `CODECS`."""
    if head.startswith(b"\x1f\x8b"):
        return "gzip"
    is_skippable = len(head) >= 4 and 0x184D2A50 <= int.from_bytes(head[:4], "little") <= 0x184D2A5F
    return "zstd" if is_skippable or head.startswith(b"\x28\xb5\x2f\xfd") else ""
