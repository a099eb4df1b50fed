"""No stage above a target's own code assumes a CPU: whoever names one has a reason, which stands here."""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "smelt"
OWN = "codegen/cpu/"

_TABLE = "small tensors of numbers that the program itself holds are in the host's memory"
_LIBRARY = "what PyTorch's library does on the host; other devices take the general way"
_PROBE = "an experiment with PyTorch, on tensors of its own"

# File → why it may name "cpu".
ALLOWED = {
    "codegen/targets.py": "offers the target",
    "device/host_library.py": "says which device is the host (`HOST`, `on_host`); everybody else asks it",
    "ir/kernel.py": "the name of the target that kernels are for unless they say otherwise",
    "ir/nodes/ambient.py": "autocast has a state for each of PyTorch's devices",
    "ir/nodes/philox_draws.py": _TABLE,
    "ir/serialize.py": _TABLE,
    "ir/tensorspec.py": "numbers of Python are tensors of the host to PyTorch",
    "autograd/engine/read_graph.py": _TABLE,
    "dispatch/moved_modules.py": "the name of a method of modules",
    "runtime/autograd/split_nodes.py": "an empty tensor that only ties nodes together",
    "runtime/program/flatten.py": "PyTorch's C functions for the host; other devices are called by the dispatcher",
    "runtime/program/library_workspace.py": _LIBRARY,
}
ALLOWED_FOLDERS = {
    "torch_abi/": _PROBE,
}


def _named(path: Path) -> Iterator[int]:
    """The lines of a file that name "cpu" as a value."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    yield from (n.lineno for n in ast.walk(tree) if isinstance(n, ast.Constant) and n.value == "cpu")


def test_who_names_a_cpu_has_a_reason() -> None:
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if name.startswith((OWN, *ALLOWED_FOLDERS)) or name in ALLOWED:
            continue
        if lines := list(_named(path)):
            found[name] = lines
    assert found == {}


def test_the_list_holds_nobody_who_names_none() -> None:
    assert [name for name in ALLOWED if not list(_named(SOURCE / name))] == []


def test_nobody_above_code_generation_names_a_target() -> None:
    """A target comes from the device of a tensor (`device.target_of`), never by name."""
    for unit in ("fuse", "pipeline", "runtime", "simplify", "autograd", "explain", "ops"):
        for path in sorted((SOURCE / unit).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            assert 'find("cpu")' not in text and "find('cpu')" not in text, path
    for path in sorted((SOURCE / "csrc").rglob("*.[ch]")):
        assert 'find("cpu")' not in path.read_text(encoding="utf-8"), path
    build = (SOURCE / "codegen" / "build.py").read_text(encoding="utf-8")
    assert "codegen.cpu" not in build
