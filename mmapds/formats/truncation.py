"""The option that binary formats share: what to do with a last record that is cut short."""

from collections.abc import Mapping
from typing import Any

from ..errors import FormatError

OPTIONS = {"truncated": (str, "error|drop", "what to do with a last record that is cut short")}


def check(given: Mapping[str, Any]) -> str:
    """Return what to do with a last record that is cut short.

    Raises:
      FormatError: it is neither "error" nor "drop".
    """
    truncated = given.get("truncated", "error")
    if truncated not in ("error", "drop"):
        raise FormatError(f"truncated = {truncated!r}, expected 'error' or 'drop'")
    return str(truncated)
