"""A model as AOTInductor runs it: exported and compiled by PyTorch into a package at the first call, then loaded.

    model = AotInductorModel(module)
    model(x)     the first call exports, compiles and loads; later ones take and return tensors as the module does

The package needs libtorch to run, and a C++ compiler to be made. Weights are in it, and frozen.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn


class AotInductorModel:
    """A module that a package of AOTInductor runs in place of PyTorch."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.compiled: Any = None
        self.package_bytes = 0

    def _load(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        from torch._inductor import aoti_compile_and_package, aoti_load_package

        with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
            program = torch.export.export(self.module, inputs, kwargs)
            path = aoti_compile_and_package(
                program, package_path=str(Path(folder, "model.pt2")), inductor_configs={"freezing": True}
            )
            self.package_bytes = Path(path).stat().st_size
            self.compiled = aoti_load_package(path)

    def __call__(self, *inputs: torch.Tensor, **kwargs: torch.Tensor) -> Any:
        if self.compiled is None:
            self._load(inputs, kwargs)
        return self.compiled(*inputs, **kwargs)
