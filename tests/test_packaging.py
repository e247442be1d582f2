"""The files for those who install, cite or audit mmapds agree with the code."""

import re
import tomllib

import mmapds
from mmapds.orders import basic
from mmapds.samplers import plan, resumable
from mmapds.storage import sections
from tests.support import released
from tests.support.files import ROOT

CHANGELOG = (ROOT / "CHANGELOG.md").read_text()


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_one_version_is_named_everywhere_and_no_extra_is_for_developers():
    assert not {"dev", "docs", "test", "audit"} & set(project()["project"]["optional-dependencies"])
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE).group(1)
    assert project()["project"]["version"] == mmapds.__version__ == cited


def test_the_conda_recipe_needs_what_the_package_needs():
    recipe = (ROOT / "conda" / "recipe.yaml").read_text()
    assert f'version: "{mmapds.__version__}"' in recipe
    run = recipe.partition("\n  run:\n")[2].partition("\n  run_constraints:\n")[0]
    found = dict(re.findall(r"(?:- |then: )([\w.-]+) (>=[\d.]+)$", run, re.MULTILINE))
    needed = dict(re.match(r"([\w.-]+)(>=[\d.]+)", each).groups() for each in project()["project"]["dependencies"])
    needed["python-xxhash"] = needed.pop("xxhash")
    assert found == {"python": project()["project"]["requires-python"], **needed}


def installed_by(text):
    """What the `pip install` commands in a text install, without their options: a set of words."""
    commands = re.findall(r"pip install ((?:'[^']+'|[\w.{}-]+)(?: [a-z][\w-]*\b)*)", text)
    return {word.strip("'") for command in commands for word in re.findall(r"'[^']+'|\S+", command) if word[:1] != "-"}


def test_what_is_installed_by_pages_and_messages_is_of_this_project_or_declared():
    """Never the package `mmapds` of the index, which is another project's."""
    extras = project()["project"]["optional-dependencies"]
    assert project()["project"]["name"] == "mmap-datasets"
    declared = {re.split(r"[><=]", each)[0] for group in extras.values() for each in group}
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    found = {word for page in pages for word in installed_by(page.read_text())}
    assert found <= {f".[{extra}]" for extra in extras} | {"."}
    assert {f".[{extra}]" for extra in ("torch", "remote", "parquet", "hdf5", "report")} <= found
    named = {word for path in (ROOT / "mmapds").rglob("*.py") for word in installed_by(path.read_text())}
    assert {"torch", "pillow", "shtab", "matplotlib", "jinja2"} <= named
    assert {word for word in named if "{" not in word} <= declared | {"ml_dtypes"}


def test_the_changelog_names_the_versions_of_files_and_orders():
    rows = re.findall(r"^\| ([a-z]+).*? \| (\d+) \|", CHANGELOG, re.MULTILINE)
    assert {what: int(version) for what, version in rows} == {
        "index": sections.VERSION,
        "array": sections.VERSION,
        "orders": basic.VERSION,
        "plans": plan.VERSION,
        "sums": sections.VERSION,
        "states": resumable.STATE_VERSION,
    }


def test_a_tag_that_is_not_the_version_is_not_released(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n")
    assert len(list(released.problems("v1.2.4", tmp_path))) == 2
    assert list(released.problems("v1.2.3", tmp_path)) == [
        "CHANGELOG.md: expected a section '## 1.2.3 - YYYY-MM-DD', found none"
    ]
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n## 1.2.3 - 2026-12-01\n")
    assert not list(released.problems("v1.2.3", tmp_path))
