"""Skips slow tests unless --long is given, and keeps pytest from importing the root `__init__.py`,
which would load the core a second time. Property tests draw the same examples in every fast run."""

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]


class CheckoutIsNoPackage:
    """The root is a package to ComfyUI only; pytest shall walk it as a plain folder."""

    @staticmethod
    def pytest_collect_directory(path, parent):
        return pytest.Dir.from_parent(parent, path=path) if path == ROOT else None


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="run the slow tests too")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--long"):
        skip = pytest.mark.skip(reason="slow: run with --long")
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(skip)


def pytest_runtest_setup(item):
    torch.manual_seed(0)  # what a test draws does not depend on the tests before it


def pytest_configure(config):
    # A busy machine is no failure: no test of a property has a deadline.
    quiet = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("s4s", derandomize=not config.getoption("--long"), **quiet)
    settings.load_profile("s4s")
    # Registered, because pytest does not ask a conftest about folders above its own.
    config.pluginmanager.register(CheckoutIsNoPackage())
