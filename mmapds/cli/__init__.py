"""The command line: `commands` has the commands and their options, `screen` prints, and the others do the work."""

import argparse
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any, cast

from ..errors import Error
from .screen import UsageError

POSITION = re.compile(r"\s?-?\d{1,19}|(\s?-?\d{1,19})?(:(-?\d{1,19})?){1,2}")
"""The number of a record, or a range of numbers."""

_OTHER_NAMES = {"window_log": "long"}


@contextmanager
def checking_options() -> Iterator[None]:
    """Turn errors of a block that looks at options alone into errors of usage, which begin with the option."""
    try:
        yield
    except Error as error:
        message = str(error)
        argument, equals, rest = message.partition(" = ")
        if argument.isidentifier():
            message = f"--{_OTHER_NAMES.get(argument, argument).replace('_', '-')}{equals}{rest}"
        raise UsageError(message) from None


def arguments_of(function: Callable[..., Any], options: argparse.Namespace) -> dict[str, Any]:
    """Return the options that are arguments of a function, by name."""
    return {name: getattr(options, name) for name in signature(function).parameters if hasattr(options, name)}


def format_options(arguments: argparse.Namespace, known: Collection[str]) -> dict[str, Any]:
    """Return the options of formats that were given."""
    return {name: getattr(arguments, name) for name in known if getattr(arguments, name) is not None}


def executor_of(options: argparse.Namespace) -> Any:
    """Return an executor of the cluster that options choose; None without one.

    Raises:
      UsageError: an address is empty, or `--parts` is given without a cluster.
      Error: there is no such cluster, or a package is missing.
    """
    given = {name: getattr(options, name) for name in ("dask", "ray") if getattr(options, name) is not None}
    if options.parts is not None and not given:
        raise UsageError("--parts: expected --dask or --ray with it, found neither")
    for name, address in given.items():
        if not address:  # as of a variable that is not set
            raise UsageError(f"--{name}: expected an address, found none")
        from .. import executors  # start-up time: most commands have no cluster

        try:
            return getattr(executors, name)(address)
        except (ModuleNotFoundError, OSError, TimeoutError) as error:
            raise Error(f"--{name}: {error}") from None
    return None


def position(text: str) -> int | slice:
    """Return what the user means by a number of a record, or by a range like those of Python."""
    if POSITION.fullmatch(text):
        parts = [int(part) if part else None for part in text.split(":")]
        if len(parts) == 1:
            return cast(int, parts[0])
        if parts[2:] != [0]:
            return slice(*parts)
    raise argparse.ArgumentTypeError(f"expected a number, or a range such as 10:20, found {text!r}")
