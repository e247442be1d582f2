"""Who handles the bus error of a read beyond the end of a file: the guard of the core, and whoever did so before it."""

import signal
import sys

import pytest

from tests.support.commands import run
from tests.support.formats import write_all
from tests.support.sanitizers import raises_sigbus


@pytest.fixture
def sources(tmp_path):
    return write_all(tmp_path)


BLAMED = """
import os, sys
import numpy, mmapds
ds = mmapds.open(sys.argv[1])
view = ds.take([len(ds) - 1])[0]
os.truncate(sys.argv[1], 8192)
print(view.sum())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which file is mapped where")
@raises_sigbus
def test_a_view_that_is_read_later_ends_the_process_with_the_reason(sources):
    ran = run("-c", BLAMED, sources["fixed"])
    assert ran.returncode == -signal.SIGBUS
    assert f"{sources['fixed']}: expected a byte at 5" in ran.stderr
    assert "found the end of the file at 8192: it became shorter while it was mapped" in ran.stderr


LATE = """
import os, sys
import mmapds
from torch.utils.data import DataLoader

def collate(samples):
    os.truncate(sys.argv[1], 8192)
    return sum(int(sample.sum()) for sample in samples)

ds = mmapds.open(sys.argv[1])
try:
    list(DataLoader(ds, 4, sampler=[len(ds) - 1] * 8, num_workers=1, collate_fn=collate))
except RuntimeError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which file is mapped where")
@raises_sigbus
def test_the_reason_comes_before_torch_blames_shared_memory(sources):
    ran = run("-c", LATE, sources["fixed"])
    assert "worker" in ran.stdout
    assert f"{sources['fixed']}: expected a byte at " in ran.stderr
    assert ran.stderr.index("shared memory is not to blame") < ran.stderr.index("insufficient shared memory")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which file is mapped where")
@raises_sigbus
def test_other_handlers_of_bus_errors_still_run(sources):
    ran = run("-X", "faulthandler", "-c", BLAMED, sources["fixed"])
    assert ran.returncode == -signal.SIGBUS
    assert "found the end of the file at 8192" in ran.stderr
    assert "Fatal Python error: Bus error" in ran.stderr
    late = BLAMED.replace("os.truncate", "import faulthandler; faulthandler.enable(); ds.take([0]); os.truncate")
    ran = run("-c", late, sources["npy"])
    assert ran.returncode == -signal.SIGBUS
    assert "Fatal Python error: Bus error" in ran.stderr
    ran = run(
        "-c",
        "import mmapds, os, signal; from mmapds import _native; _native.Map(os.__file__); "
        "os.kill(os.getpid(), signal.SIGBUS)",
    )
    assert ran.returncode == -signal.SIGBUS


LATER = """
import faulthandler, os, sys, time
import mmapds
ds = mmapds.open(sys.argv[1])
ds[0]
faulthandler.enable()
end = time.monotonic() + 0.05
while time.monotonic() < end:
    ds[0]
for _ in range(16):  # one of which looks at the clock
    ds[0]
os.truncate(sys.argv[1], 8192)
try:
    ds[len(ds) - 1]
except mmapds.StaleIndexError as error:
    print(error)
"""


@raises_sigbus
@pytest.mark.parametrize("name", ["jsonl", "arrays"])
def test_reads_take_the_handler_back_that_another_library_has_set(sources, name):
    ran = run("-c", LATER, sources[name])
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "STALE: a." in ran.stdout
    assert "when indexed and is 8192 now; run: python -m mmapds.index " in ran.stdout
