"""What `make dist` tests an installed wheel with, and what is missing there."""

import functools
import re
import tomllib

from tests.support.files import ROOT

NOT_MODULES = {"hypothesis", "pytest", "pytest-benchmark", "pytest-xdist", "pillow"}
"""Packages that are there, have no module of their name, or both."""


@functools.cache
def tests():
    """Return the names of the modules of tests, none where they are copied to be run beside no checkout."""
    makefile = ROOT / "Makefile"
    if not makefile.exists():
        return []
    text = makefile.read_text().replace("\\\n", " ")
    names = re.search(r"^INSTALLED_TESTS := (.*)$", text, re.MULTILINE).group(1).split()
    return [f"test_{name}" for name in names]


@functools.cache
def absent():
    """Return the modules of extras and of the tools of developers, but for those that run the tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = [project["dependency-groups"]["dev"], *project["project"]["optional-dependencies"].values()]
    listed = {re.match(r"[\w-]+", package).group() for group in packages for package in group}
    return sorted(name.replace("-", "_") for name in (listed - NOT_MODULES) | {"PIL"})
