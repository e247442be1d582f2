"""The command line: `python -m mmapds`, the same as `mmapds`."""

import sys

from .cli.commands import main

if __name__ == "__main__":
    sys.exit(main())
