"""A recipe for Conan 2: what ``install.sh`` installs, as a package of the local cache.

In a clone, run ``conan export-pkg ffi/packaging/conan``. The variable ``CACHALOT_LIBRARIES`` names a
folder with libraries that are already built. Among the recipes of a release, this file has a
``conandata.yml`` next to it, and ``conan create`` fetches and builds the release.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.files import get


class Cachalot(ConanFile):
    """The headers, both libraries and cachalot's own CMake package."""

    name = "cachalot"
    description = "A GPU memory allocator"
    license = "MIT OR Apache-2.0"
    topics = ("gpu", "cuda", "memory", "allocator")
    settings = "os", "arch"

    def set_version(self) -> None:
        """Takes the version from the release, or else from the clone's header."""
        if self.conan_data:
            (self.version,) = self.conan_data["sources"]
            return
        header = (Path(self.recipe_folder) / "../../include/cachalot.h").read_text(encoding="utf-8")
        numbers = dict(re.findall(r"^#define CACHALOT_VERSION_([A-Z]+) (\d+)$", header, re.MULTILINE))
        self.version = "{MAJOR}.{MINOR}.{PATCH}".format_map(numbers)

    def layout(self) -> None:
        """Leaves the scripts that Conan generates in the build folder, and not next to the recipe."""
        if not self.conan_data:
            self.folders.generators = "../../../target/conan"

    def validate(self) -> None:
        """Refuses every system but Linux on x86-64 and aarch64."""
        if self.settings.os != "Linux" or self.settings.arch not in ("x86_64", "armv8"):
            raise ConanInvalidConfiguration("cachalot needs Linux on x86-64 or aarch64")

    def source(self) -> None:
        """Fetches the release."""
        get(self, **self.conan_data["sources"][self.version], strip_root=True)

    def package(self) -> None:
        """Builds the libraries by cargo, unless they are built, and installs them."""
        built = os.environ.get("CACHALOT_LIBRARIES")
        source = f'--from "{built}" ' if built else ""
        scripts = "ffi/packaging" if self.conan_data else ".."
        self.run(f'"{self.source_folder}/{scripts}/install.sh" {source}"{self.package_folder}"')

    def package_info(self) -> None:
        """Leaves the targets to cachalot's own CMake package."""
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = ["lib/cmake/cachalot"]
        self.cpp_info.libs = ["cachalot"]
        self.cpp_info.system_libs = ["gcc_s", "util", "rt", "pthread", "m", "dl"]
