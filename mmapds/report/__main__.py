"""The command line: `python -m mmapds.report`."""

import sys

from ..cli.commands import main

if __name__ == "__main__":
    sys.exit(main(["report", *sys.argv[1:]]))
