"""The command line: `python -m mmapds`, the same as `mmapds`."""

import sys

from .command.main import main

if __name__ == "__main__":
    sys.exit(main())
