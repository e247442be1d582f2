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


def test_the_changelog_names_the_versions_of_files_and_orders():
    rows = re.findall(r"^\| ([a-z]+).*? \| (\d+) \|", CHANGELOG, re.MULTILINE)
    assert {what: int(version) for what, version in rows} == {
        "index": sections.VERSION,
        "array": sections.VERSION,
        "orders": basic.VERSION,
        "plans": plan.VERSION,
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
