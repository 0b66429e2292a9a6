#!/usr/bin/env python3
"""Builds a recipe for conda-forge, installs the package into an environment and runs the recipe's
tests there. conda-forge's compilers are packages without a file, and this machine's are used.

    tests/conda_recipe.py RECIPE OUT      with scripts/setup/rattler_build.sh
"""

from __future__ import annotations

import sys
from pathlib import Path

from rattler_build import EnvironmentIsolation, PlatformConfig, RenderConfig, Stage0Recipe, ToolConfiguration, VariantConfig

STAND_INS = ("gcc_linux-64", "gxx_linux-64", "rust_linux-64", "sysroot_linux-64", "python")


def stand_in(name: str) -> Stage0Recipe:
    """Returns the recipe of a package without files."""
    build = {"number": 0, "noarch": "generic", "script": "true"}
    return Stage0Recipe.from_dict({"package": {"name": name, "version": "3.12"}, "build": build})


def main() -> None:
    """Builds the stand-ins, and the recipe over them."""
    recipe, out = Path(sys.argv[1]), Path(sys.argv[2])
    channel = out / "channel"
    channels = [channel.resolve().as_uri()]
    for name in STAND_INS:
        (out / name).mkdir(parents=True)
        stand_in(name).run_build(output_dir=channel, channels=[])
    variants = VariantConfig({"c_stdlib": ["sysroot"]})
    result = Stage0Recipe.from_file(recipe).run_build(
        variants,
        tool_config=ToolConfiguration(test_strategy="native"),
        output_dir=channel,
        channels=channels,
        env_isolation=EnvironmentIsolation.NONE,
    )
    print(result)


if __name__ == "__main__":
    main()
