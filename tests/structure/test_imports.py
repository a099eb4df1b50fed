"""Layers and banned imports: the package keeps the rules, and each rule is shown to catch what it is there for.

`FORBIDDEN` and `BANNED_EXAMPLES` are written out by hand, not derived from the tables they test: loosening or dropping
any one row of `imports.LAYERS`, `imports.ALSO`, `imports.ONLY` or `imports.BANNED` fails a test here.
"""

from pathlib import Path

import pytest

from tests.structure import imports

SOURCE = Path(__file__).parents[2] / "src" / "smelt"

UPPER = "capture lazy autograd simplify fuse codegen pipeline plugins deploy explain api compiled_autograd cli __init__"

# For each unit, the units it must never import. What is not named here it may.
FORBIDDEN: dict[str, str] = {
    "base": f"device ir runtime _native ops {UPPER}",
    "device": f"ir runtime ops {UPPER}",
    "ir": f"device runtime ops {UPPER}",
    "runtime": f"ops {UPPER}",
    "_native": f"device ir runtime ops {UPPER}",
    "ops": UPPER,
    "capture": "lazy autograd simplify fuse codegen pipeline plugins deploy explain api compiled_autograd cli __init__",
    "lazy": "capture autograd simplify fuse codegen pipeline plugins deploy explain api compiled_autograd cli __init__",
    "autograd": "capture lazy simplify fuse codegen pipeline plugins deploy explain api compiled_autograd cli __init__",
    "simplify": "capture lazy autograd fuse codegen pipeline plugins deploy explain api compiled_autograd cli __init__",
    "fuse": "capture lazy autograd simplify codegen pipeline plugins deploy explain api compiled_autograd cli __init__",
    "codegen": "capture lazy autograd simplify fuse pipeline plugins deploy explain api compiled_autograd cli __init__",
    "pipeline": "plugins deploy explain api compiled_autograd cli __init__",
    "plugins": "pipeline deploy explain api compiled_autograd cli __init__",
    "deploy": "explain api compiled_autograd cli __init__",
    "explain": "deploy api compiled_autograd cli __init__",
    "api": "compiled_autograd",
    "compiled_autograd": "cli __init__",
    "cli": "compiled_autograd",
    "__init__": "",
}

# One way in for each banned module, by a different road each.
BANNED_EXAMPLES: dict[str, str] = {
    "torch._dynamo": "import torch._dynamo.utils",
    "torch._functorch": "from torch._functorch import aot_autograd",
    "functorch.compile": "from functorch.compile import min_cut_rematerialization_partition",
    "torch._inductor": "from importlib import import_module\nimport_module('torch._inductor.ir')",
    "torch.compile": "import torch\nfast = torch.compile(print)",
    "torch.export": "import torch\nexport = getattr(torch, 'export')",
    "torch.jit": "import torch as t\nscript = t.jit.script",
    "torch._lazy": "from torch import _lazy",
}

# Places an import can hide in.
HIDING_PLACES: dict[str, str] = {
    "function": "def f():\n    {}\n",
    "method": "class C:\n    def f(self):\n        if self:\n            {}\n",
    "type checking": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {}\n",
    "try": "try:\n    {}\nexcept ImportError:\n    pass\n",
    "async": "async def f():\n    async with f():\n        {}\n",
}


def write(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return root


def file_of(unit: str) -> str:
    return "__init__.py" if unit == "__init__" else f"{unit}/part.py"


def imported(unit: str) -> str:
    return "import smelt" if unit == "__init__" else f"from smelt.{unit} import thing"


def test_the_package_keeps_its_layers() -> None:
    assert imports.sources(SOURCE), f"no sources under {SOURCE}"
    assert imports.misplaced(SOURCE) == []


def test_the_package_keeps_clear_of_the_banned_modules() -> None:
    assert imports.banned(SOURCE) == []


def test_every_unit_has_its_row_here() -> None:
    assert list(FORBIDDEN) == list(imports.LAYERS)
    assert list(BANNED_EXAMPLES) == list(imports.BANNED)


@pytest.mark.parametrize("unit", FORBIDDEN)
def test_layer_rule(tmp_path: Path, unit: str) -> None:
    caught = []
    for target in FORBIDDEN:
        faults = imports.misplaced(write(tmp_path / target, file_of(unit), imported(target)))
        if faults:
            assert len(faults) == 1 and f"may not import {target}" in faults[0]
            caught.append(target)
    assert sorted(caught) == sorted(FORBIDDEN[unit].split())


@pytest.mark.parametrize("module", BANNED_EXAMPLES)
def test_banned_rule(tmp_path: Path, module: str) -> None:
    root = write(tmp_path, "fuse/part.py", BANNED_EXAMPLES[module])
    assert any(f"is banned ({module})" in fault for fault in imports.banned(root))


@pytest.mark.parametrize("place", HIDING_PLACES)
def test_imports_are_found_wherever_they_hide(tmp_path: Path, place: str) -> None:
    text = HIDING_PLACES[place]
    write(tmp_path / "a", "fuse/part.py", text.format("import smelt.capture.frame"))
    write(tmp_path / "b", "fuse/part.py", text.format("import torch._dynamo"))
    assert "may not import capture" in imports.misplaced(tmp_path / "a")[0]
    assert "torch._dynamo is banned" in imports.banned(tmp_path / "b")[0]


@pytest.mark.parametrize(
    "statement",
    [
        "from .. import capture",
        "from ..capture import frame",
        "from ..capture.frame import Frame",
        "from smelt import capture",
        "import smelt.capture as c",
        "import importlib\nimportlib.import_module('smelt.capture')",
        "__import__('smelt.capture')",
    ],
)
def test_layer_rule_sees_every_spelling(tmp_path: Path, statement: str) -> None:
    root = write(tmp_path, "fuse/part.py", statement)
    assert "may not import capture" in imports.misplaced(root)[0]


def test_names_that_only_look_banned_pass(tmp_path: Path) -> None:
    text = "import torch\nfrom torch.compiler import is_compiling\nx = torch.compiler, torch._C._functorch\n"
    assert imports.banned(write(tmp_path, "fuse/part.py", text)) == []


@pytest.mark.parametrize("unit", [unit for unit in FORBIDDEN if unit not in ("codegen", "plugins")])
def test_llvm_stays_behind_the_code_generators(tmp_path: Path, unit: str) -> None:
    root = write(tmp_path, file_of(unit), "def f():\n    from llvmlite import binding\n")
    assert "may not import llvmlite" in imports.misplaced(root)[0]


@pytest.mark.parametrize("unit", ["codegen", "plugins"])
def test_the_code_generators_may_use_llvm(tmp_path: Path, unit: str) -> None:
    assert imports.misplaced(write(tmp_path, file_of(unit), "import llvmlite")) == []


def test_a_unit_without_a_layer_is_a_fault(tmp_path: Path) -> None:
    assert "helpers has no layer" in imports.misplaced(write(tmp_path, "helpers/part.py", ""))[0]


def test_imports_from_c_count(tmp_path: Path) -> None:
    root = write(tmp_path, "_native/hook.c", 'x = PyImport_ImportModule("smelt.fuse");\n')
    assert "may not import fuse" in imports.misplaced(root)[0]
    root = write(tmp_path, "_native/hook.c", 'x = PyImport_ImportModule("torch._dynamo.eval_frame");\n')
    assert "torch._dynamo.eval_frame is banned" in imports.banned(root)[0]


def test_stubs_count(tmp_path: Path) -> None:
    assert "may not import fuse" in imports.misplaced(write(tmp_path, "_native.pyi", "from smelt.fuse import x"))[0]
