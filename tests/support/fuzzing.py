"""Fuzz targets: how they are built."""

import shutil
import subprocess

from tests.support.files import ROOT

FUZZ = ROOT / "tests" / "fuzz"
CORPUS = FUZZ / "corpus"
TARGETS = sorted(path.stem for path in FUZZ.glob("fuzz_*.c") if path.stem != "fuzz_main")
_FLAGS = ["-std=gnu11", "-g", "-O2", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"]
_FLAGS += ["-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
_SANITIZERS = "address,undefined"
_UNTRACED = ROOT / "csrc" / "permute.c"


def libfuzzer():
    """The path of a clang that has libFuzzer; None without one."""
    clang = shutil.which("clang")
    if clang is None:
        return None
    command = [clang, f"-fsanitize=fuzzer,{_SANITIZERS}", "-x", "c", "-", "-o", "/dev/null"]
    empty = b"int LLVMFuzzerTestOneInput(const char *d, long n) { return 0 * *d * n; }"
    return clang if subprocess.run(command, input=empty, capture_output=True, check=False).returncode == 0 else None


def build_core(folder, clang=None):
    """Compile the core, for libFuzzer if a clang is given, else with the driver; return the objects for all targets."""
    sources = sorted((ROOT / "csrc").glob("*.c"))
    checked = [clang or compiler(), *_FLAGS, f"-fsanitize={_SANITIZERS}"]
    if clang is None:
        subprocess.run([*checked, "-c", *sources, FUZZ / "fuzz_main.c"], cwd=folder, check=True)
    else:
        # A permutation takes the same path whatever its input, and to trace its rounds would take most of the time of
        # the targets that permute.
        traced = [source for source in sources if source != _UNTRACED]
        subprocess.run([*checked, "-fsanitize=fuzzer-no-link", "-c", *traced], cwd=folder, check=True)
        subprocess.run([*checked, "-c", _UNTRACED], cwd=folder, check=True)
    return sorted(folder.glob("*.o"))


def build_target(folder, target, core, clang=None):
    """Compile a target and return its path."""
    program = folder / target
    sanitizers = _SANITIZERS if clang is None else f"fuzzer,{_SANITIZERS}"
    source = FUZZ / f"{target}.c"
    command = [clang or compiler(), *_FLAGS, f"-fsanitize={sanitizers}", "-o", program, source, *core]
    subprocess.run(command, check=True)
    return program


def compiler():
    """The C compiler that the package is built with."""
    found = shutil.which("cc")
    assert found, "the tests build the C core, as the package itself does"
    return found
