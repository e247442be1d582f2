"""Blocks of lines that are scanned each by itself: what a line that begins in one and goes on in the next comes to."""


class Seam:
    """The end of a block, where a line may go on that is blank so far.

    Each block is scanned as if a line began at its first byte. Whether one does, the blocks before it say.
    """

    def __init__(self) -> None:
        self.pending: int | None = None
        """Where the line begins that holds the next byte, if it is blank so far; else it is a record already."""

    def join(self, begin: int, starts: memoryview, pending: int | None, *, is_first: bool) -> memoryview:
        """Return where the records begin that the next block adds.

        Args:
          begin: of the block.
          starts: of the records that a scan of it found; changed.
          pending: as the scan says it for the end of the block.
          is_first: whether it is the first block of a source.
        """
        if not is_first and starts and starts[0] == begin:  # the rest of the line is not blank
            if self.pending is None:
                starts = starts[1:]
            else:
                starts[0] = self.pending
        if is_first or pending != begin:
            self.pending = pending
        return starts
