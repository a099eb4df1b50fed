"""Runs files that `smelt.export` wrote. Needs NumPy, and neither PyTorch nor smelt.

    model = smelt_runtime.load("model.smelt")
    model(x)                                    NumPy arrays in, NumPy arrays out

In the repository this package imports modules of smelt. Its wheel contains copies of them (`tools/runtime_wheel.py`).
"""

from smelt.base.errors import SmeltError
from smelt.base.version import VERSION
from smelt.deploy.loaded import LoadedArtifact, LoadedEntry, load
from smelt.deploy.runtime import ArtifactFailed, RegisterInfo

__version__ = VERSION

__all__ = ["ArtifactFailed", "LoadedArtifact", "LoadedEntry", "RegisterInfo", "SmeltError", "load"]
