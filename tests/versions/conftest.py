"""Lets these tests run where torch is not installed: what reads bytecode needs nothing but Python."""

import importlib.util
import pathlib
import sys
import types

SOURCE = pathlib.Path(__file__).parents[2] / "src" / "smelt"

if importlib.util.find_spec("torch") is None:
    for name, folder in (("smelt", SOURCE), ("smelt.capture", SOURCE / "capture")):
        if name not in sys.modules:
            package = types.ModuleType(name)
            package.__path__ = [str(folder)]
            sys.modules[name] = package
