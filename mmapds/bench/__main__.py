"""The command line: `python -m mmapds.bench`."""

import sys

from ..cli.commands import main

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
