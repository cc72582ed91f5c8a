"""The repository's root is the package `labelwall`; everything else is in pyproject.toml."""

from setuptools import find_namespace_packages, setup

FOLDERS = find_namespace_packages(include=("experiment*", "student*", "teacher*", "wall*"))

setup(
    packages=["labelwall", *(f"labelwall.{name}" for name in FOLDERS)],
    package_dir={"labelwall": "."},
)
