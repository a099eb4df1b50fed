"""No stage above a target's own code assumes a CPU: whoever names one has a reason, which stands here."""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "smelt"
OWN = "codegen/cpu/"

_TABLE = "small tensors of numbers that the program itself holds are in the host's memory"
_LIBRARY = "what PyTorch's library does on the host; other devices take the general way"
_PROBE = "an experiment with PyTorch, on tensors of its own"
_HOST_READ = "Python reads the value: on the host that costs no wait for a device"

# File → why it may name "cpu".
ALLOWED = {
    "codegen/targets.py": "offers the target",
    "device/host_library.py": _LIBRARY,
    "ir/kernel.py": "the name of the target that kernels are for unless they say otherwise",
    "ir/nodes/ambient.py": "autocast has a state for each of PyTorch's devices",
    "ir/serialize.py": _TABLE,
    "ir/tensorspec.py": "numbers of Python are tensors of the host to PyTorch",
    "autograd/engine/read_graph.py": _TABLE,
    "autograd/joint/bernoulli_order.py": _PROBE,
    "autograd/joint/substitutes.py": _LIBRARY,
    "capture/calls/dispatch.py": "`tensor.cpu()` is a method of PyTorch",
    "capture/calls/grad_and_autocast.py": "the default device of PyTorch",
    "capture/interpreter/deferred_scalars.py": _HOST_READ,
    "capture/interpreter/speculate.py": _HOST_READ,
    "capture/model/policy.py": "`tensor.cpu()` is a method of PyTorch",
    "meta/effects.py": _LIBRARY,
    "meta/ghost.py": "ghosts without a device of their own, and operators tried on the host",
    "meta/layout_probe.py": _PROBE,
    "meta/symbolic_decomps.py": _LIBRARY,
    "ops/decompose/products.py": _LIBRARY,
    "pipeline/sizes/template.py": _TABLE,
    "runtime/autograd/split_nodes.py": "an empty tensor that only ties nodes together",
    "runtime/program/flatten.py": "PyTorch's C functions for the host; other devices are called by the dispatcher",
    "runtime/program/library_workspace.py": _LIBRARY,
    "simplify/aliasing.py": _LIBRARY,
    "simplify/bool_masks.py": _LIBRARY,
    "simplify/channels_last.py": _LIBRARY,
    "simplify/constants.py": _LIBRARY,
    "simplify/gqa_heads.py": _LIBRARY,
    "simplify/matmul_layouts.py": _LIBRARY,
    "simplify/scalar_operands.py": _TABLE,
}
ALLOWED_FOLDERS = {
    "meta/rules/": "what PyTorch's operators return on the host, where a rule holds for it alone",
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
