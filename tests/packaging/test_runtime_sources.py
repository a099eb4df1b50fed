"""smelt-runtime is made of few modules of smelt, and runs a file without torch, smelt and llvmlite."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy
import pytest
import torch

import smelt
from smelt.deploy.runtime import LIBRARY
from tests.packaging.commands import ROOT, clean_environment

RUN = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "smelt", "llvmlite"):
            raise ImportError(name)

sys.meta_path.insert(0, Refuse())
import numpy
import smelt_runtime

model = smelt_runtime.load("model.smelt")
y = model(numpy.load("x.npy"))
assert type(y) is numpy.ndarray and numpy.abs(y - numpy.load("y.npy")).max() < 1e-6
try:
    model()
except smelt_runtime.SmeltError as error:
    assert error.code == "SM052" and "calls with 1 positional argument, not with 0" in str(error), error
model.load_state_dict(model.state_dict())
for number in (1, 2):
    assert smelt_runtime.load("counter.smelt").entry("add")(numpy.ones(2, "float32")).tolist() == [1, 1]
print(sorted(name for name in sys.modules if name.startswith("smelt")))
"""


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    """tools/runtime_wheel.py"""
    spec = importlib.util.spec_from_file_location("runtime_wheel", ROOT / "tools" / "runtime_wheel.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2))

    def add(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x
        return self.total.clone()


def test_the_package_runs_files_without_torch_and_smelt(tool: ModuleType, tmp_path: Path) -> None:
    model, x = torch.nn.Linear(4, 2), torch.randn(3, 4)
    smelt.export(model, (x,)).save(tmp_path / "model.smelt")
    smelt.export_entries({"add": smelt.Entry(Counter().add, (torch.ones(2),))}).save(tmp_path / "counter.smelt")
    numpy.save(tmp_path / "x.npy", x.numpy())
    numpy.save(tmp_path / "y.npy", model(x).detach().numpy())
    tool.write_sources(LIBRARY.read_bytes(), tmp_path / "sources")
    paths = [str(tmp_path / "sources"), str(Path(numpy.__file__).parents[1])]
    script = f"import sys; sys.path[:0] = {paths!r}\n{RUN}"
    command = [sys.executable, "-I", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=clean_environment(), timeout=120)
    assert done.returncode == 0, done.stderr
    assert "smelt_runtime.deploy.loaded" in done.stdout and "'smelt." not in done.stdout


def test_the_package_has_few_modules_and_needs_numpy_only(tool: ModuleType) -> None:
    face = sorted((ROOT / "packages" / "runtime" / "smelt_runtime").glob("*.py"))
    needed = tool.needed_files(face)
    assert sum(path.stat().st_size for path in needed) < 150_000
    assert {path.relative_to(tool.SOURCE).parts[0] for path in needed} <= {"base", "deploy", "ir"}
    names = {"numpy", "smelt", *sys.stdlib_module_names}
    for path in (*face, *needed):
        tree = ast.parse(path.read_text())
        at_import = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        imported = [alias.name for node in at_import if isinstance(node, ast.Import) for alias in node.names]
        imported += [node.module for node in at_import if isinstance(node, ast.ImportFrom) and node.module]
        assert {name.partition(".")[0] for name in imported} <= names, path


def test_only_imports_are_renamed(tool: ModuleType) -> None:
    text = 'from smelt.base.errors import warn\n    import smelt.ir\nsay("smelt.load")\nimport smelter\n'
    renamed = text.replace("from smelt.", "from smelt_runtime.").replace("import smelt.", "import smelt_runtime.")
    assert tool.renamed(text) == renamed
