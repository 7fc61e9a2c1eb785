"""Select the packages of the wheel: s4s_core, and trainer as s4s_trainer to avoid name clashes.

Everything else is in pyproject.toml.
"""

from setuptools import find_packages, setup

core = find_packages(include=["s4s_core", "s4s_core.*"])
trainer = find_packages(include=["trainer", "trainer.*"])

setup(
    packages=core + ["s4s_" + name for name in trainer],
    package_dir={"s4s_trainer": "trainer"},
)
