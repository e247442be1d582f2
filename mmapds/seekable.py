"""`python -m mmapds.seekable`; and in Python, under the same name, the function: `mmapds.seekable()`."""

import sys

if __name__ == "__main__":
    from .cli.commands import main

    sys.exit(main(["seekable", *sys.argv[1:]]))

from .recompress import seekable

# Whoever imports this module would otherwise have it in the place of the function.
sys.modules[__name__] = seekable  # type: ignore[assignment]
