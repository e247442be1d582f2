"""Everything that writes, where room ends at any byte, by a limit of the size of files.

It succeeds, or raises an error of mmapds's that says so. The file that it replaces is the old one or the new one,
whole, and nothing else is left but whole parts.
"""

from tests.support.engines import Inline, small_tasks
from tests.support.files import largest_file
from tests.support.torture import doing, is_refused
from tests.torture._writers import Folder

EACH = 12
SAYS = "limits of the size of files: the old file or the new one, and nothing else"
RECORDS = 3000


def one(random, path):
    folder = Folder(random, path, RECORDS)
    more = {"executor": Inline()} if folder.writer.is_driver else {}

    def write(limit):
        with largest_file(limit), small_tasks(30_000):
            folder.writer.write(folder.path, **more)

    for _ in range(EACH):
        limit, before = random.choice([random.randrange(200), random.randrange(5000), random.randrange(200_000)]), None
        with doing(folder.name, "with files of up to", limit, "bytes"):
            before = folder.found()
            refused = is_refused(lambda limit=limit: write(limit))
            folder.check(is_done=not refused)
            # Of arrays, the file may be new without its index.
            assert not refused or folder.found() == before or folder.target.suffix == ".mma"
            left = folder.left_over() | {each.name for each in folder.parts() if not refused}
            assert not left, f"left: {left}"
