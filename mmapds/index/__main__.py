"""The command line: `python -m mmapds.index`."""

import sys

from ..cli.commands import index_main as main

if __name__ == "__main__":
    sys.exit(main())
