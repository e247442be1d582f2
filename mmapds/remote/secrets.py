"""What a user gives a store in confidence: checked when it is given, and in no message."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import Error

_VARIABLES = ("AWS_", "AZURE_", "GOOGLE_", "HF_", "HTTP", "ALL_PROXY", "NO_PROXY")  # how names begin, in capitals
_SECRET = re.compile(r"secret|token|key|pass|auth|sas|credential|sign|cookie|header|proxy", re.IGNORECASE)
_LEAST = 8  # characters of a secret


def environment() -> dict[str, str]:
    """Return the variables that stores may read."""
    return {name: value for name, value in os.environ.items() if name.upper().startswith(_VARIABLES)}


def check_environment(variables: Mapping[str, str]) -> None:
    """Raise Error for a value that a client cannot send, such as a key with a line end."""
    for name, value in variables.items():
        if not value.isprintable():
            raise Error(f"{name}: expected a variable of one line, found a line end or another control character in it")


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return storage options; raise Error for a value that a client cannot send."""
    for names, value in _leaves(options):
        sent = [str(each) for each in (*names, *([value] if isinstance(value, str) else []))]
        if not all(each.isprintable() and (each.isascii() or "headers" not in names) for each in sent):
            shown = "".join(f"[{name!r}]" for name in names)
            raise Error(
                f"storage_options{shown}: expected text of one line, found a line end or another character that cannot "
                "be sent"
            )
    try:
        json.dumps(options)
    except (TypeError, ValueError) as error:
        raise Error(f"storage_options: expected values of JSON, found another: {error}") from None
    return dict(options)


def hidden(text: str, options: Mapping[str, Any]) -> str:
    """Return a message without the secrets among options and variables."""
    given = [*_leaves(options), *_leaves(environment())]
    named = {each for names, each in given if any(_SECRET.search(str(name)) for name in names)}
    values = [each for each in named if isinstance(each, str) and not os.path.exists(each)]
    words = [
        word for value in values for word in re.split(r"[\s:@,;=/]+", value)
    ]  # a server may send back a part alone
    secrets = {each for each in (*values, *words) if len(each) >= _LEAST}
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _leaves(value: Any, *names: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield each value in nested options, and the names that lead to it."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _leaves(each, *names, name)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each, *names)
    else:
        yield names, value
