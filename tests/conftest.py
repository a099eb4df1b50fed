"""Shared by all tests: the `--update-golden` switch, `tests.*` importable from any test folder, and no disk cache.

What an earlier run left on the disk must not be what is tested; the tests of the cache switch it on, each in its own
directory.
"""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that `from tests.golden import golden` works everywhere

from tests import golden as golden_module

os.environ["SMELT_CACHE"] = "0"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/ from what is printed now")


def pytest_configure(config: pytest.Config) -> None:
    golden_module.updating = bool(config.getoption("--update-golden"))
