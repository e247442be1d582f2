"""Render the conda recipe for the oldest and the newest Python, as rattler-build would build it."""

import sys
from pathlib import Path

from rattler_build import RenderConfig, Stage0Recipe, VariantConfig

RECIPE = Path(__file__).parents[2] / "conda" / "recipe.yaml"
VARIANTS = 'python: ["3.11.*", "3.15.*"]\nc_compiler: ["gcc"]\nc_stdlib: ["sysroot"]\n'


def main():
    """Print what each package needs; fail unless both are made, and the sdist that they are built from is there."""
    recipe = Stage0Recipe.from_yaml(RECIPE.read_text())
    rendered = [each.recipe for each in recipe.render(VariantConfig.from_yaml(VARIANTS), RenderConfig())]
    for each in rendered:
        print(each.package.name, each.package.version, *map(str, each.requirements.run), sep=" | ")
    version = rendered[0].package.version
    sdist = RECIPE.parents[1] / "dist" / f"mmap_datasets-{version}.tar.gz"
    if len(rendered) != 2 or not sdist.is_file():
        sys.exit(f"{RECIPE}: expected packages for two Pythons of {sdist}, found {len(rendered)}")


if __name__ == "__main__":
    main()
