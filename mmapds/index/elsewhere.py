"""What to do where an index cannot be written: on a command line, the whole command that writes it elsewhere."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import either
from ..formats.format import Format
from ..storage.hints import build_command, measuring_options, word
from ..storage.index_file import NAMED
from ..storage.sources import Source, named
from ..storage.writer import IndexWriter

_PLACE = f"-o OUT{IndexWriter.SUFFIX}"


def way_elsewhere(paths: Sequence[str], *options: str) -> str:
    """Return how to write an index elsewhere: by a command, or nothing in Python, where users know what they called.

    Args:
      paths: what the command takes.
      options: for the command, besides that of the place.
    """
    given = list(paths) if len(paths) <= NAMED else ["SOURCE..."]
    return either(f"run: {build_command(given, *options, _PLACE)}", "")


def options_of(
    sources: Sequence[Source],
    chosen: Format,
    given: Mapping[str, Any],
    measured: Mapping[str, Any],
    held: Mapping[str, str],
    *,
    hashes: bool,
) -> list[str]:
    """Return the options of a command that indexes sources in a certain way.

    Args:
      given: options of the format; those that say what is so by default are left out.
      measured: see `Measuring.describe`.
      held: the columns that the sources hold, which need no option.
      hashes: whether the index has a hash of each source.
    """
    options = [] if named(sources[0].path, chosen.suffixes) else [f"--format {chosen.name}"]
    for name, value in given.items():
        if value is not None and (name, value) != ("truncated", "error"):
            text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            options.append(f"--{name.replace('_', '-')} {word(text)}")
    expressions = {name: text for name, text in measured["expressions"].items() if held.get(name) != text}
    return [*options, *measuring_options({**measured, "expressions": expressions}), *(["--hash"] if hashes else [])]
