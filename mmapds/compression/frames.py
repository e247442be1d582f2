"""The frames of a compressed file, as walks and seek tables give them: arrays, as there may be many millions."""

from array import array
from itertools import accumulate
from typing import NamedTuple

UNKNOWN = 2**64 - 1
"""The text of a frame where nothing says how much it is."""


class Frames(NamedTuple):
    """Frames, in the order of the file. A frame owns what follows it, if that has no text of its own."""

    begins: "array[int]"
    """Where each begins in the file, and where the last one ends; u64, one more than frames."""
    contents: "array[int]"
    """Bytes of text in each, u64; or `UNKNOWN`. They are claims, which whoever decodes the frames must check."""
    checksums: "array[int] | None" = None
    """The lower half of the XXH64 of the text of each, u32, if a seek table has them."""

    @property
    def bounds(self) -> "array[int] | None":
        """Where the text of each begins in all text, and where that ends; u64, or None if that is not known."""
        return None if UNKNOWN in self.contents else array("Q", accumulate(self.contents, initial=0))

    def with_text(self) -> "Frames":
        """Return those that have text, or may have some."""
        if 0 not in self.contents:
            return self
        import numpy as np  # start-up time: few files have frames without text

        chosen = np.frombuffer(self.contents, "<u8") > 0
        begins = np.frombuffer(self.begins, "<u8")[np.append(chosen, True)]
        contents = np.frombuffer(self.contents, "<u8")[chosen]
        sums = None if self.checksums is None else np.frombuffer(self.checksums, "<u4")[chosen]
        return Frames(
            array("Q", begins.tobytes()),
            array("Q", contents.tobytes()),
            sums if sums is None else array("I", sums.tobytes()),
        )
