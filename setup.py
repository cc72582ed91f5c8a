"""The repository's root is the package `labelwall`; everything else is in pyproject.toml."""

from typing import Any

from setuptools import find_namespace_packages, setup
from setuptools.command.build_py import build_py

FOLDERS = find_namespace_packages(include=("experiment*", "student*", "teacher*", "wall*"))


class Modules(build_py):
    """All modules but this file."""

    def find_package_modules(self, *args: Any) -> Any:
        return [known for known in super().find_package_modules(*args) if known[1] != "setup"]


setup(
    cmdclass={"build_py": Modules},
    packages=["labelwall", *(f"labelwall.{name}" for name in FOLDERS)],
    package_dir={"labelwall": "."},
)
