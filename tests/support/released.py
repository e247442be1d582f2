"""What the release workflow asks of a tag: `python tests/support/released.py v1.2.3` fails unless all agree with it."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def problems(tag, root=ROOT):
    """Yield what stands against releasing a checkout under a tag."""
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    if tag != f"v{version}":
        yield f"tag {tag}: expected v{version}, the version in pyproject.toml"
    if not re.search(
        rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$", (root / "CHANGELOG.md").read_text(), re.MULTILINE
    ):
        yield f"CHANGELOG.md: expected a section '## {version} - YYYY-MM-DD', found none"


if __name__ == "__main__":
    found = list(problems(sys.argv[1]))
    print(*found, sep="\n", file=sys.stderr)
    sys.exit(bool(found))
