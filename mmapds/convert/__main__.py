"""The command line: `python -m mmapds.convert`."""

import sys

from ..cli.commands import main as run_command


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    return run_command(["convert", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    sys.exit(main())
