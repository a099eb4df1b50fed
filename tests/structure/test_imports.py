"""Layers and banned imports: the package keeps the rules, and each rule is shown to catch what it is there for.

`FORBIDDEN` and `BANNED_EXAMPLES` are written out by hand, not derived from the tables they test: loosening or dropping
any one row of `imports.LAYERS`, `imports.ALSO`, `imports.ONLY` or `imports.BANNED` fails a test here.
"""

from pathlib import Path

import pytest

from tests.structure import imports

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "smelt"
PLUGINS = sorted(file.parent for file in ROOT.glob("plugins/*/smelt_*/__init__.py"))

STAGES = "capture lazy autograd simplify fuse codegen"
ABOVE = "pipeline plugins deploy explain chips api eager_api compiled_autograd generation cli __init__ __main__"
UPPER = f"{STAGES} {ABOVE}"

# For each unit, the units it must never import. What is not named here it may.
FORBIDDEN: dict[str, str] = {
    "base": f"symbolic _native quantization device ir torch_abi meta dispatch runtime ops {UPPER}",
    "symbolic": f"_native quantization device ir torch_abi meta dispatch runtime ops {UPPER}",
    "_native": f"symbolic quantization device ir torch_abi meta dispatch runtime ops {UPPER}",
    "quantization": f"symbolic _native device ir torch_abi meta dispatch runtime ops {UPPER}",
    "device": f"ir torch_abi meta dispatch runtime ops {UPPER}",
    "ir": f"device torch_abi meta dispatch runtime ops {UPPER}",
    "torch_abi": f"meta dispatch runtime ops {UPPER}",
    "meta": f"torch_abi dispatch runtime ops {UPPER}",
    "dispatch": f"runtime ops {UPPER}",
    "runtime": f"dispatch ops {UPPER}",
    "ops": f"dispatch runtime {UPPER}",
    "capture": f"lazy autograd simplify fuse codegen {ABOVE}",
    "lazy": f"capture autograd simplify fuse codegen {ABOVE}",
    "autograd": f"capture lazy simplify fuse codegen {ABOVE}",
    "simplify": f"capture lazy autograd fuse codegen {ABOVE}",
    "fuse": f"capture lazy autograd simplify codegen {ABOVE}",
    "codegen": f"capture lazy autograd simplify fuse {ABOVE}",
    "pipeline": "plugins deploy explain chips api eager_api compiled_autograd generation cli __init__ __main__",
    "plugins": "pipeline deploy explain chips api eager_api compiled_autograd generation cli __init__ __main__",
    "deploy": "explain chips api eager_api compiled_autograd generation cli __init__ __main__",
    "explain": "deploy chips api eager_api compiled_autograd generation cli __init__ __main__",
    "chips": "deploy explain api eager_api compiled_autograd generation cli __init__ __main__",
    "api": "eager_api compiled_autograd generation __main__",
    "eager_api": "api compiled_autograd generation cli __init__ __main__",
    "compiled_autograd": "eager_api generation cli __init__ __main__",
    "generation": "eager_api compiled_autograd cli __init__ __main__",
    "cli": "eager_api compiled_autograd generation __main__",
    "__init__": "__main__",
    "__main__": "api eager_api compiled_autograd generation __init__",
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


@pytest.mark.parametrize("root", [SOURCE, *PLUGINS], ids=lambda root: root.name)
def test_no_package_imports_a_banned_module(root: Path) -> None:
    assert imports.sources(root), f"no sources under {root}"
    assert imports.banned(root) == []


def test_the_rooms_of_the_package_import_one_way() -> None:
    assert imports.out_of_order(SOURCE) == []


def test_no_files_of_the_package_import_each_other() -> None:
    assert imports.circles(SOURCE) == []


def test_c_without_python_declares_and_includes_its_own() -> None:
    assert imports.out_of_place_c(SOURCE) == []


def test_c_out_of_place_is_found(tmp_path: Path) -> None:
    write(tmp_path, "csrc/executor/one.h", "bool smelt_one(int x);\nvoid *smelt_two(int x,\n                int y);\n")
    write(tmp_path, "csrc/executor/one.c", "#include <Python.h>\nbool\nsmelt_one(int x)\n{\n}\n")
    write(tmp_path, "csrc/deploy/two.c", '#include <sys/mman.h>\n#include "executor/one.h"\n#include "runner/run.h"\n')
    faults = [fault.rpartition("/csrc/")[2] for fault in imports.out_of_place_c(tmp_path)]
    assert faults == ["executor/one.c: includes Python", "executor/one.h: smelt_two is not of its source",
                      "deploy/two.c: includes runner/"]  # fmt: skip


def test_no_folder_of_the_package_is_crowded() -> None:
    assert imports.crowded(SOURCE) == []


@pytest.mark.parametrize(
    "statement",
    [
        "from smelt.capture.driver.engine import Engine",
        "from smelt.capture import driver",
        "def f():\n    import smelt.capture.driver",
        "from ..driver import engine",
    ],
)
def test_room_rule(tmp_path: Path, statement: str) -> None:
    root = write(tmp_path, "capture/guards/tree.py", statement)
    assert "capture/guards may not import capture/driver" in imports.out_of_order(root)[0]
    assert imports.out_of_order(write(tmp_path / "b", "capture/driver/engine.py", "import smelt.capture.guards")) == []


def test_a_room_without_a_place_is_a_fault(tmp_path: Path) -> None:
    assert "attic has no place" in imports.out_of_order(write(tmp_path, "capture/attic/part.py", ""))[0]
    assert "attic has no place" in imports.out_of_order(write(tmp_path / "b", "pipeline/attic.py", ""))[0]


def test_circles_are_found(tmp_path: Path) -> None:
    write(tmp_path, "fuse/one.py", "from smelt.fuse.two import b")
    write(tmp_path, "fuse/two.py", "def f():\n    from smelt.fuse.three import c")
    write(tmp_path, "fuse/three.py", "from smelt.fuse import one\nimport smelt.fuse.four")
    write(tmp_path, "fuse/four.py", "")
    assert imports.circles(tmp_path) == ["smelt.fuse.one and smelt.fuse.three and smelt.fuse.two import each other"]


def test_circles_are_found_in_c(tmp_path: Path) -> None:
    write(tmp_path, "csrc/frame/hook.c", '#include "frame/hook.h"\n#include "frame/region.h"\n')
    write(tmp_path, "csrc/frame/hook.h", "")
    write(tmp_path, "csrc/frame/region.c", '#include "frame/hook.h"\n')
    write(tmp_path, "csrc/frame/region.h", "")
    assert imports.circles(tmp_path) == ["frame/hook and frame/region import each other"]


def test_crowds_are_found(tmp_path: Path) -> None:
    for number in range(21):
        write(tmp_path, f"fuse/part{number}.py", "")
    assert "21 files beside each other" in imports.crowded(tmp_path)[0]


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
    write(tmp_path / "a", "fuse/part.py", text.format("import smelt.capture.driver"))
    write(tmp_path / "b", "fuse/part.py", text.format("import torch._dynamo"))
    assert "may not import capture" in imports.misplaced(tmp_path / "a")[0]
    assert "torch._dynamo is banned" in imports.banned(tmp_path / "b")[0]


@pytest.mark.parametrize(
    "statement",
    [
        "from .. import capture",
        "from ..capture import driver",
        "from ..capture.driver import Engine",
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
    root = write(tmp_path, "csrc/frame/hook.c", 'x = PyImport_ImportModule("smelt.fuse");\n')
    assert "may not import fuse" in imports.misplaced(root)[0]
    root = write(tmp_path, "csrc/frame/hook.c", 'x = PyImport_ImportModule("torch._dynamo.eval_frame");\n')
    assert "torch._dynamo.eval_frame is banned" in imports.banned(root)[0]


def test_stubs_count(tmp_path: Path) -> None:
    assert "may not import fuse" in imports.misplaced(write(tmp_path, "_native.pyi", "from smelt.fuse import x"))[0]
