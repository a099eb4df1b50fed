"""Shared by all tests: the `--update-golden` switch, and `tests.*` importable from any test folder."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that `from tests.golden import golden` works everywhere

from tests import golden as golden_module


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/ from what is printed now")


def pytest_configure(config: pytest.Config) -> None:
    golden_module.updating = bool(config.getoption("--update-golden"))
