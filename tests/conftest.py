"""Skips slow tests unless --long is given, and keeps pytest from importing the root `__init__.py`,
which would load the core a second time. Property tests draw the same examples in every fast run."""

from pathlib import Path

import pytest
import torch

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
    _set_hypothesis(config.getoption("--long"))
    # Registered, because pytest does not ask a conftest about folders above its own.
    config.pluginmanager.register(CheckoutIsNoPackage())


def _set_hypothesis(random):
    """A busy machine is no failure: no test of a property has a deadline."""
    try:
        from hypothesis import HealthCheck, settings
    except ImportError:  # a host's Python runs the host's tests without it
        return
    slow = [HealthCheck.too_slow]
    settings.register_profile(
        "s4s", deadline=None, derandomize=not random, suppress_health_check=slow
    )
    settings.load_profile("s4s")
