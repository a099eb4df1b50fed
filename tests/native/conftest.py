"""Lets these tests run where torch is not installed: `smelt._native` needs nothing but Python."""

import importlib.util
import pathlib
import sys
import types

if importlib.util.find_spec("torch") is None and "smelt" not in sys.modules:
    package = types.ModuleType("smelt")
    package.__path__ = [str(pathlib.Path(__file__).parents[2] / "src" / "smelt")]
    sys.modules["smelt"] = package
