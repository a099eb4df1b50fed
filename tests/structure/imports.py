"""Reads every import of the package and holds it against the layers and the list of banned modules.

    source tree → `Import` records (ast; bodies of functions, TYPE_CHECKING blocks, importlib strings, attribute chains)
                → one line of text per broken rule

    src/smelt/fuse/kernels.py:7: fuse (layer 3) may not import capture (layer 3)

The tree is a parameter, so that the tests can feed trees that break one rule each.
"""

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "smelt"

LAYERS: dict[str, int] = {
    "base": 0,
    "symbolic": 1,
    "_native": 1,
    "quantization": 1,
    "device": 2,
    "ir": 2,
    "torch_abi": 3,
    "meta": 3,
    "dispatch": 4,
    "runtime": 4,
    "ops": 4,
    "capture": 5,
    "lazy": 5,
    "autograd": 5,
    "simplify": 5,
    "fuse": 5,
    "codegen": 5,
    "pipeline": 6,
    "plugins": 6,
    "deploy": 7,
    "explain": 7,
    "chips": 7,
    "api": 8,
    "eager_api": 8,
    "compiled_autograd": 8,
    "generation": 8,
    "cli": 8,
    "__init__": 8,
    "__main__": 8,
}

# A unit imports itself and the layers below it. What else it may import, of its own layer:
ALSO: dict[str, frozenset[str]] = {
    "api": frozenset({"cli", "__init__"}),
    "compiled_autograd": frozenset({"api"}),
    "generation": frozenset({"api"}),
    "cli": frozenset({"api", "__init__"}),
    "__init__": frozenset({"api", "cli", "compiled_autograd", "eager_api", "generation"}),
    "__main__": frozenset({"cli"}),
}

# The rooms of a unit, from the ground up: files and folders right below it. A room imports those before it.
ROOMS: dict[str, tuple[str, ...]] = {
    "symbolic": ("shapes", "expressions", "evaluator", "postfix", "symnode", "symsize"),
    "torch_abi": (
        "symbols",
        "probe",
        "aoti_shims",
        "cuda_shims",
        "boxed_calls",
        "tensor_layout",
        "storage_layout",
        "node_kinds",
        "node_layout",
        "node_streams",
    ),
    "meta": (
        "facts",
        "rules",
        "effects",
        "replaced_operators",
        "devices",
        "sparse",
        "autograd_graph",
        "nonleaf",
        "layout_probe",
        "fake_tensor",
        "data_sizes",
        "recurrent_layers",
        "recurrent_on_host",
        "symbolic_decomps",
        "memory_peak",
    ),
    "dispatch": (
        "tensors", "signatures", "real_call", "recurrent", "loss_scaling", "fused_optimizers", "device_operators",
        "operators", "autocast", "streams", "module", "files", "copies", "accelerator", "torch_hooks", "moved_modules",
        "device", "owner",
    ),
    "lazy": (
        "lines",
        "steps",
        "memory",
        "describe",
        "timeline",
        "trials",
        "interruptions",
        "real_device",
        "paths",
        "recorder",
        "composites",
        "loops",
        "runs",
        "backwards",
        "at_once",
        "owner",
        "block",
        "enabling",
    ),
    "runtime": ("cache", "collectives", "overlap", "preserved_state", "cuda", "program", "autograd"),
    "capture": (
        "model",
        "guards",
        "tape",
        "polyfills",
        "interpreter",
        "calls",
        "opcodes",
        "replay",
        "persist",
        "driver",
        "explore",
    ),
    "autograd": ("joint", "partition", "engine", "aot_inputs", "aot"),
    "chips": (
        *("runtime", "lazy_chip", "apart", "launcher", "strided_copies", "host_calls", "kinds"),
        *("sized_by_data", "decompositions", "calls", "own_methods", "owner", "registration"),
    ),
    "codegen": (
        "loops",
        "llvm",
        "generator",
        "shared_functions",
        "axes",
        "attention_problem",
        "cpu",
        "gpu",
        "chip_generator",
        "processors",
        "targets",
        "write_module",
        "build",
        "ahead_of_time",
        "static",
    ),
    "generation": ("cache", "sampling", "programs", "paged", "run", "speculation", "loop"),
    "pipeline": (
        "placement",
        "parts",
        "cache",
        "sizes",
        "backward",
        "passes",
        "stages",
        "stage_map",
        "own_generator",
        "empty_tensors",
        "grid_devices",
        "whole_program",
        "compile",
        "host_part",
        "chips",
        "tuning",
        "calibration",
        "background",
        "backends",
        "backend_adapter",
    ),
}

# The compile stack is ours: these stay out of src/ by whatever road.
BANNED: tuple[str, ...] = (
    "torch._dynamo",
    "torch._functorch",
    "functorch.compile",
    "torch._inductor",
    "torch.compile",
    "torch.export",
    "torch.jit",
    "torch._lazy",
)

# Only these units may name these packages: LLVM stays behind the code generators.
ONLY: dict[str, frozenset[str]] = {"llvmlite": frozenset({"codegen", "plugins"})}

_C_IMPORT = re.compile(r'PyImport_Import\w*\s*\(\s*"([^"]+)"')


@dataclass(frozen=True, slots=True)
class Import:
    """`file` names the dotted path `target` at `line`: by an import, an importlib string or an attribute chain."""

    file: Path
    line: int
    target: str


def unit_of(file: Path, root: Path) -> str:
    """The unit a source file belongs to: `smelt/fuse/kernels.py` → `fuse`, `smelt/api.py` → `api`."""
    first = file.relative_to(root).parts[0].split(".")[0]
    return "_native" if first in ("csrc", "include") else first


def may_import(unit: str, target: str) -> bool:
    """Whether the table lets `unit` import `target`, both units of the package."""
    return unit == target or target in ALSO.get(unit, frozenset()) or LAYERS[target] < LAYERS[unit]


def sources(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.suffix in (".py", ".pyi", ".c", ".h"))


def imports_of(file: Path, root: Path) -> Iterator[Import]:
    """Every module or attribute path that `file` reaches for."""
    text = file.read_text(encoding="utf-8")
    if file.suffix in (".c", ".h"):
        for number, line in enumerate(text.splitlines(), 1):
            for match in _C_IMPORT.finditer(line):
                yield Import(file, number, match[1])
        return
    yield from _python_imports(text, file, root)


@functools.cache
def _python_imports(text: str, file: Path, root: Path) -> list[Import]:
    """Once for all tests: parsing takes seconds."""
    tree = ast.parse(text, str(file))
    aliases = _aliases(tree)
    return [
        Import(file, getattr(node, "lineno", 0), target)
        for node in ast.walk(tree)
        for target in _targets(node, file, root, aliases)
    ]


def _targets(node: ast.AST, file: Path, root: Path, aliases: dict[str, str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name
    elif isinstance(node, ast.ImportFrom):
        module = _absolute(node, file, root)
        for alias in node.names:
            yield module if alias.name == "*" else f"{module}.{alias.name}"
    elif isinstance(node, ast.Attribute):
        chain = _chain(node, aliases)
        if chain:
            yield chain
    elif isinstance(node, ast.Call):
        yield from _called(node, aliases)


def _called(node: ast.Call, aliases: dict[str, str]) -> Iterator[str]:
    """Modules named by strings: `import_module("x")`, `__import__("x")`, `getattr(torch, "x")`."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    texts = [arg.value if isinstance(arg, ast.Constant) and isinstance(arg.value, str) else None for arg in node.args]
    if name in ("import_module", "__import__") and texts and texts[0]:
        yield texts[0]
    if name == "getattr" and len(texts) > 1 and texts[1]:
        owner = _chain(node.args[0], aliases)
        if owner:
            yield f"{owner}.{texts[1]}"


def _absolute(node: ast.ImportFrom, file: Path, root: Path) -> str:
    if not node.level:
        return node.module or ""
    package = [PACKAGE, *file.relative_to(root).parent.parts]
    kept = package[: len(package) - (node.level - 1)]
    return ".".join([*kept, *([node.module] if node.module else [])])


def _aliases(tree: ast.AST) -> dict[str, str]:
    """Local names that stand for modules: `import torch.fx as fx` → fx: torch.fx."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                found[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def _chain(node: ast.expr, aliases: dict[str, str]) -> str | None:
    """`torch.jit.script` as text, if it starts at an imported name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in aliases:
        return None
    return ".".join([aliases[node.id], *reversed(parts)])


def under(target: str, module: str) -> bool:
    return target == module or target.startswith(module + ".")


def banned(root: Path) -> list[str]:
    """A line for every banned module that a file reaches."""
    faults = []
    for file in sources(root):
        for found in imports_of(file, root):
            for module in BANNED:
                if under(found.target, module):
                    faults.append(f"{file}:{found.line}: {found.target} is banned ({module})")
    return list(dict.fromkeys(faults))


def misplaced(root: Path) -> list[str]:
    """A line for every import that goes against the layers, and for every unit that has no layer."""
    faults = []
    for file in sources(root):
        unit = unit_of(file, root)
        if unit not in LAYERS:
            faults.append(f"{file}: {unit} has no layer; add it to the table in {Path(__file__).name}")
            continue
        for found in imports_of(file, root):
            fault = _fault(unit, found.target)
            if fault:
                faults.append(f"{file}:{found.line}: {fault}")
    return list(dict.fromkeys(faults))


def _fault(unit: str, target: str) -> str | None:
    for package, units in ONLY.items():
        if under(target, package) and unit not in units:
            return f"{unit} may not import {package}, only {', '.join(sorted(units))} may"
    if not under(target, PACKAGE):
        return None
    parts = target.split(".")
    other = parts[1] if len(parts) > 1 and parts[1] in LAYERS else "__init__"
    if may_import(unit, other):
        return None
    return f"{unit} (layer {LAYERS[unit]}) may not import {other} (layer {LAYERS[other]})"


def out_of_order(root: Path) -> list[str]:
    """A line for every import between rooms of a unit that runs the wrong way, and for every room without a place."""
    faults = []
    for file in sources(root):
        unit = unit_of(file, root)
        parts = file.relative_to(root).with_suffix("").parts
        if unit not in ROOMS or len(parts) < 2 or parts[1] == "__init__":
            continue
        order, room = ROOMS[unit], parts[1]
        if room not in order:
            faults.append(f"{file}: {room} has no place among the rooms of {unit}; add it to {Path(__file__).name}")
            continue
        for found in imports_of(file, root):
            names = found.target.split(".")
            if names[:2] != [PACKAGE, unit] or len(names) < 3 or names[2] not in order:
                continue
            if order.index(names[2]) > order.index(room):
                faults.append(
                    f"{file}:{found.line}: {unit}/{room} may not import {unit}/{names[2]}, which stands above it"
                )
    return list(dict.fromkeys(faults))


def circles(root: Path) -> list[str]:
    """A line for every circle of files that import each other, in Python or by `#include`."""
    graph = _python_graph(root) | _c_graph(root)
    faults, done = [], set[str]()
    for start in graph:
        if start in done:
            continue
        ring = {other for other in _reached(graph, start) if start in _reached(graph, other)}
        done |= ring
        if ring:
            faults.append(" and ".join(sorted(ring)) + " import each other")
    return faults


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    seen, waiting = set[str](), [*graph.get(start, ())]
    while waiting:
        each = waiting.pop()
        if each not in seen:
            seen.add(each)
            waiting += graph.get(each, ())
    return seen


def _python_graph(root: Path) -> dict[str, set[str]]:
    modules = {}
    for file in sources(root):
        if file.suffix == ".py":
            parts = [PACKAGE, *file.relative_to(root).with_suffix("").parts]
            modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    graph: dict[str, set[str]] = {}
    for name, file in modules.items():
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
        graph[name] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                module = _absolute(node, file, root)
                targets = [f"{module}.{alias.name}" for alias in node.names]
            else:
                continue
            for target in targets:
                found = target if target in modules else target.rpartition(".")[0]
                # `from smelt import _native` and the like ask the package for a part of it, not for what it exports.
                if found in modules and found not in (name, PACKAGE):
                    graph[name].add(found)
    return graph


def _c_graph(root: Path) -> dict[str, set[str]]:
    """Which C files need which: a header and the source of the same name are one."""
    graph: dict[str, set[str]] = {}
    for file in sources(root):
        if file.suffix not in (".c", ".h") or root / "csrc" not in file.parents:
            continue
        name = str(file.relative_to(root / "csrc").with_suffix(""))
        included = re.findall(r'#include "([\w/]+)\.h"', file.read_text(encoding="utf-8"))
        found = {each for each in included if (root / "csrc" / f"{each}.h").exists()}
        graph.setdefault(name, set()).update(found - {name})
    return graph


# Folders of C that run without Python: the folders whose headers each may include beside smelt.h.
WITHOUT_PYTHON = {"executor": ("executor",), "deploy": ("executor", "deploy"), "static": ("executor",)}


def out_of_place_c(root: Path) -> list[str]:
    """A line for every header without Python that declares what another file than its own source defines, which hides
    circles of files, and for every #include that such a folder may not have."""
    faults = []
    for folder, allowed in WITHOUT_PYTHON.items():
        for file in sorted((root / "csrc" / folder).rglob("*.[ch]")):
            text = file.read_text(encoding="utf-8")
            included = re.findall(r'#include [<"]((?:\w+/)+|Python)', text)
            faults += [
                f"{file}: includes {name}"
                for name in included
                if name.partition("/")[0] not in (*allowed, "sys") or name == "Python"
            ]
            source = file.with_suffix(".c")
            defined = re.findall(r"(?m)^(\w+)\(", source.read_text(encoding="utf-8")) if source.exists() else []
            declared = re.findall(r"(?m)^(?!static|typedef)\w[\w *\n]*?\b(smelt_\w+)\([^{};]*\);", text)
            if file.suffix == ".h":
                faults += [f"{file}: {name} is not of its source" for name in declared if name not in defined]
    return faults


def crowded(root: Path, most: int = 20) -> list[str]:
    """A line for every folder with more than `most` files beside each other."""
    faults = []
    for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]:
        count = sum(path.suffix in (".py", ".pyi", ".c", ".h") for path in folder.iterdir())
        if count > most:
            faults.append(f"{folder}: {count} files beside each other; {most} are what a reader sees at once")
    return faults
