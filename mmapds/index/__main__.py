"""The command line: `python -m mmapds.index`."""

import sys

from ..cli.index import main

if __name__ == "__main__":
    sys.exit(main())
