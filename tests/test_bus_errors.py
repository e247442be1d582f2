"""Who handles the bus error of a read beyond the end of a file: the guard of the core, and whoever did so before it."""

import signal
import subprocess

import pytest

from tests.support.commands import run
from tests.support.formats import write_all
from tests.support.fuzzing import compiler
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


@raises_sigbus
def test_a_view_that_is_read_later_ends_the_process(sources):
    ran = run("-c", BLAMED, sources["fixed"])
    assert ran.returncode == -signal.SIGBUS


@raises_sigbus
def test_other_handlers_of_bus_errors_still_run(sources):
    ran = run("-X", "faulthandler", "-c", BLAMED, sources["fixed"])
    assert ran.returncode == -signal.SIGBUS
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
    ran = run(
        "-c",
        "import mmapds, os, signal; from mmapds import _native; signal.signal(signal.SIGBUS, signal.SIG_IGN); "
        "_native.Map(os.__file__); os.kill(os.getpid(), signal.SIGBUS); print('still there')",
    )
    assert (ran.returncode, ran.stdout) == (0, "still there\n")


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


RECOVERING = r"""
#include <setjmp.h>
#include <signal.h>

static sigjmp_buf jump;
static volatile sig_atomic_t reads;
static struct sigaction before;

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    if (reads) {
        reads = 0;
        siglongjmp(jump, 1);
    }
    before.sa_sigaction(number, info, context);
}

void set_handler(void)
{
    const struct sigaction own = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGBUS, &own, &before);
}

int read_byte(const volatile char *at)
{
    if (sigsetjmp(jump, 1))
        return -1;
    reads = 1;
    const int found = *at;
    reads = 0;
    return found;
}
"""

BESIDE = """
import ctypes, mmap, os, sys
import mmapds
ds = mmapds.open(sys.argv[1])
view = ds.take([len(ds) - 1])[0]
library = ctypes.CDLL(sys.argv[2])
library.read_byte.argtypes = [ctypes.c_void_p]
with open(sys.argv[2] + ".data", "wb+") as file:
    file.truncate(8192)
    mapped = mmap.mmap(file.fileno(), 8192)
    file.truncate(0)
address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
library.set_handler()
for _ in range(6):
    ds.take([0])  # sets our handler again
    print(library.read_byte(address))
if "view" in sys.argv[3:]:
    os.truncate(sys.argv[1], 8192)
    print(view.sum())
"""


@pytest.fixture
def recovering(tmp_path):
    """A library whose handler jumps out of the reads that it knows, and passes others on to the handler before."""
    library = tmp_path / "recovering.so"
    command = [compiler(), "-D_GNU_SOURCE", "-shared", "-fPIC", "-x", "c", "-", "-o", library]
    subprocess.run(command, input=RECOVERING.encode(), check=True)
    return library


@raises_sigbus
def test_another_library_recovers_from_its_own_bus_errors_as_often_as_it_likes(sources, recovering):
    ran = run("-c", BESIDE, sources["fixed"], recovering)
    assert (ran.returncode, ran.stdout.split()) == (0, ["-1"] * 6)


@raises_sigbus
def test_a_bus_error_that_another_library_passes_back_ends_the_process(sources, recovering):
    ran = run("-c", BESIDE, sources["fixed"], recovering, "view")
    assert ran.returncode == -signal.SIGBUS
