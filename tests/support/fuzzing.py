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
_UNTRACED = {"permute.c"}
_WITH_MAGIC = {"array_record.c", "frames.c", "inflate.c", "json.c", "json_values.c", "tar.c", "zstd.c"}
_TRACED = "-fsanitize=fuzzer-no-link"
_NO_COMPARISONS = "-fno-sanitize-coverage=trace-cmp"


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
    checked = [clang or "cc", *_FLAGS, f"-fsanitize={_SANITIZERS}"]
    if clang is None:
        subprocess.run([*checked, "-c", *sources, FUZZ / "fuzz_main.c"], cwd=folder, check=True)
    else:
        # To trace a branch or a comparison takes longer than to run it. A permutation takes the same path whatever its
        # input; comparisons help libFuzzer only where they are with words that an input would hardly hit by chance.
        untraced = [source for source in sources if source.name in _UNTRACED]
        magic = [source for source in sources if source.name in _WITH_MAGIC]
        branches = [source for source in sources if source not in untraced and source not in magic]
        for traced, options in (untraced, []), (magic, [_TRACED]), (branches, [_TRACED, _NO_COMPARISONS]):
            subprocess.run([*checked, *options, "-c", *traced], cwd=folder, check=True)
    return sorted(folder.glob("*.o"))


def build_target(folder, target, core, clang=None):
    """Compile a target and return its path."""
    program = folder / target
    checked = [clang or "cc", *_FLAGS, f"-fsanitize={_SANITIZERS}"]
    if clang is not None:
        checked += ["-fsanitize=fuzzer", _NO_COMPARISONS]
    subprocess.run([*checked, "-o", program, FUZZ / f"{target}.c", *core], check=True)
    return program
