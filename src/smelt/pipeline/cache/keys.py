"""What a compiled graph depends on, as one text: equal texts, equal code. The key of the disk cache.

    smelt 0.1.0 …; torch 2.13.0 …; cpu …; max_rewrites=-1 …; grad=True autocast=… …
    0 placeholder f32 (4, 8) (8, 1) …
    1 call_function torch._C._nn.gelu (0) approximate='none'

A graph is told apart from every other by its own lines; versions of all code that takes part, the processor, the
options and the state of the process that tracing depends on come before. What has no text, a tensor held by the graph
or a user's function, makes a graph `Unstorable`, with a reason.
"""

import functools
import hashlib
import importlib.util
import os
import platform
import struct
import sys
import types
from collections.abc import Iterator
from dataclasses import fields
from enum import Enum
from typing import Any

import torch
from torch import fx

from smelt.base.options import Options
from smelt.base.paths import PACKAGE
from smelt.device import device_of, devices, find
from smelt.ir.graph import Traced
from smelt.ir.nodes.ambient import Ambient
from smelt.ir.serialize import NAMESPACES
from smelt.ir.tensorspec import NumberSpec, TensorSpec, spec_of
from smelt.meta.devices import current_devices
from smelt.symbolic.symnode import Formula
from smelt.torch_abi.aoti_shims import connect

# Whose functions are known by name, because their code is part of the key or of Python itself.
KNOWN = ("torch", "smelt", "operator", "_operator", "math", "builtins")
# Lines of /proc/cpuinfo that say what a processor can do; others say how fast it runs just now.
_PROCESSOR = ("features", "flags", "model", "model name", "cpu family", "stepping", "vendor_id", "cpu implementer",
              "cpu architecture", "cpu variant", "cpu part", "cpu revision", "isa")  # fmt: skip
# Settings of PyTorch that choose between operators, or change what one returns.
_SETTINGS = (
    "_get_deterministic_algorithms", "_get_deterministic_fill_uninitialized_memory", "_get_float32_matmul_precision",
    "_get_flash_sdp_enabled", "_get_mem_efficient_sdp_enabled", "_get_math_sdp_enabled",
    "_get_overrideable_sdp_enabled", "_get_mkldnn_enabled", "_get_mkldnn_deterministic", "_get_nnpack_enabled",
    "_get_onednn_allow_tf32", "_get_cudnn_enabled", "_get_cudnn_sdp_enabled",
    "_get_cpu_allow_fp16_reduced_precision_reduction",
)  # fmt: skip


class Unstorable(Exception):
    """Why a graph has no key."""


def key_of(traced: Traced, options: Options) -> str:
    """The text that stands for a graph and all its code depends on."""
    return f"{environment_key(options)}\n{text_of(traced)}"


def text_of(traced: Traced) -> str:
    """A graph's own part of the key."""
    if traced.constants:
        raise Unstorable("the graph holds constant tensors")
    return "\n".join(_graph_lines(traced.graph))


def environment_key(options: Options) -> str:
    """The rest of it: all that code depends on besides the graph."""
    _refuse_overrides()
    chosen = [f"{f.name}={getattr(options, f.name)!r}" for f in fields(options) if f.metadata["in_key"]]
    targets = " ".join(f"{device}:{name}" for device, name in devices().items())
    return "\n".join([*installation(), " ".join(chosen), targets, *_chip(options.target), _state()])


def _chip(target: str) -> list[str]:
    """What a chip says of itself: what is made for it depends on nothing else of it."""
    return [] if device_of(target) is None else [repr(find(target))]


@functools.cache
def installation() -> tuple[str, ...]:
    """All code that takes part, and the processor: what does not change while a process lives."""
    torch_library = _stamp(os.path.join(torch.__path__[0], "lib"), "libtorch_cpu")
    python = f"python {sys.implementation.name} {sys.hexversion:x} {platform.machine()} {sys.platform} {sys.maxsize}"
    return (
        f"smelt {hashlib.sha256(repr(_files(PACKAGE)).encode()).hexdigest()}",
        f"torch {torch.__version__} {torch.version.git_version} {torch_library}",
        f"llvm {_llvm()}",
        python,
        *_processor(),
    )


def _files(folder: str, inside: str = "") -> list[tuple[str, int, int]]:
    """Every file of the package by size and time: a version number says too little while code is being changed."""
    files = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".py", ".so")):
                known = entry.stat()
                files.append((inside + entry.name, known.st_size, known.st_mtime_ns))
            elif entry.name != "__pycache__" and entry.is_dir():
                files += _files(entry.path, f"{inside}{entry.name}/")
    return sorted(files)


def _stamp(folder: str, stem: str) -> str:
    names = sorted(name for name in os.listdir(folder) if name.startswith(stem))
    stats = [os.stat(os.path.join(folder, name)) for name in names]
    return " ".join(f"{name}:{s.st_size}:{s.st_mtime_ns}" for name, s in zip(names, stats, strict=True))


def _llvm() -> str:
    """Which llvmlite is installed, without importing it."""
    spec = importlib.util.find_spec("llvmlite")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return " ".join(_stamp(os.path.join(place, "binding"), "libllvmlite") for place in places) or "none"


def _processor() -> list[str]:
    try:
        with open("/proc/cpuinfo") as file:
            pairs = [line.partition(":") for line in file]
    except OSError:
        raise Unstorable("the processor does not say what it can do") from None
    lines = {f"{name.strip()}: {' '.join(value.split())}" for name, _, value in pairs
             if name.strip().lower() in _PROCESSOR}  # fmt: skip
    if not lines:
        raise Unstorable("the processor does not say what it can do")
    return sorted(lines)


def _state() -> str:
    settings = [f"{name}={getattr(torch._C, name)()}" for name in _SETTINGS if hasattr(torch._C, name)]
    # Whether tables have native calls, and of what kinds: under a mode none is tried.
    native = connect(), torch._C._len_torch_dispatch_stack()
    return f"{Ambient.now()} {torch.get_default_dtype()} {current_devices()} {' '.join(settings)} {native}"


# Ours, with a device of our own: where memory lies is no part of a graph, nor how attention is recorded there.
_harmless = {"aten/_pin_memory/CPU", "aten/scaled_dot_product_attention/AutogradPrivateUse1"}


def _refuse_overrides() -> None:
    """Operators of PyTorch's own that the program replaced are not what their names say."""
    new = torch.library._impls - _harmless  # thousands, of which most were there the last time
    for name in new:
        if name.startswith("aten/"):
            key = name.rpartition("/")[2]
            if "CPU" in key or "Autograd" in key or "Composite" in key:
                raise Unstorable(f"the program replaced an operator of PyTorch's: {name}")
    _harmless.update(new)


def _graph_lines(graph: fx.Graph) -> Iterator[str]:
    places: dict[fx.Node, int] = {}
    for place, node in enumerate(graph.nodes):
        places[node] = place
        target = node.target if node.op == "call_method" else "" if node.op in ("placeholder", "output") else None
        if target is None:
            if node.op != "call_function":
                raise Unstorable(f"the graph has a {node.op} node")
            target = function_name(node.target)
        words = [_text(each, places) for each in node.args]
        words += [f"{name}={_text(each, places)}" for name, each in node.kwargs.items()]
        spec = _spec_text(spec_of(node)) if node.op == "placeholder" else ""  # those of the others follow from them
        yield f"{place} {node.op} {target} ({', '.join(words)}) {spec}"


def _spec_text(spec: Any) -> str:
    if isinstance(spec, NumberSpec):
        what = spec.what
        if isinstance(what, Formula):
            return f"number {what.text} {what.example!r}"
        return f"number {what} {what.evaluate(lambda symbol: symbol.example)}"
    assert isinstance(spec, TensorSpec)
    numbers = (*spec.shape, *spec.stride, spec.offset)
    if not all(type(number) is int for number in numbers):
        raise Unstorable("a size is not a number")
    kind = f"{spec.dtype} {spec.device} {spec.requires_grad} {spec.is_number}"
    return f"{kind} {tuple(spec.shape)} {tuple(spec.stride)} {spec.offset}"


_PLAIN = (bool, int, str, type(None), type(Ellipsis), torch.dtype, torch.layout, torch.memory_format, torch.device)


def _text(value: Any, places: dict[fx.Node, int]) -> str:
    kind = type(value)
    if kind is fx.Node:
        return f"%{places[value]}"
    if kind in _PLAIN:
        return repr(value)
    if kind is float:
        return struct.pack("<d", value).hex()  # tells zeros, and what is not a number, apart
    if kind is complex:
        return f"complex {struct.pack('<dd', value.real, value.imag).hex()}"
    if kind is slice:
        return f"slice({_text((value.start, value.stop, value.step), places)})"
    if isinstance(value, tuple | list):
        inside = ", ".join(_text(each, places) for each in value)
        return f"{kind.__module__}.{kind.__qualname__}[{inside}]" if _is_known(kind) else _refuse(kind)
    if isinstance(value, dict):
        inside = ", ".join(f"{_text(name, places)}: {_text(each, places)}" for name, each in value.items())
        return f"{kind.__module__}.{kind.__qualname__}{{{inside}}}" if _is_known(kind) else _refuse(kind)
    if isinstance(value, Enum) and _is_known(kind):
        return f"{kind.__module__}.{kind.__qualname__}.{value.name}"
    if isinstance(value, types.FunctionType | types.BuiltinFunctionType | type):
        return function_name(value)
    return _refuse(kind)


def _refuse(kind: type) -> str:
    raise Unstorable(f"an argument is a {kind.__module__}.{kind.__qualname__}")


def _is_known(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in KNOWN or kind.__module__ == "collections"


def function_name(function: Any) -> str:
    """A name that only this function has, whatever process is asked."""
    if isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        name = str(function)
        if name.partition(".")[0] not in NAMESPACES:
            raise Unstorable(f"{name} is not an operator of PyTorch's own")
        return name
    return ".".join(function_place(function))


def function_place(function: Any) -> tuple[str, str]:
    """The module that a function of PyTorch's or Python's own is found in, and under what name."""
    if not isinstance(function, types.FunctionType | types.BuiltinFunctionType | types.MethodDescriptorType | type):
        raise Unstorable(f"a node calls a {type(function).__qualname__}")
    owner = getattr(function, "__objclass__", None)
    module = getattr(owner or function, "__module__", None) or ""
    if module.partition(".")[0] not in KNOWN:
        raise Unstorable(f"{module}.{function.__name__} is a user's function")
    if isinstance(function, types.FunctionType) and not function.__code__.co_filename.startswith(_code_folders()):
        raise Unstorable(f"{module}.{function.__name__} was replaced by the program")  # by a wrapper with its name, say
    return module, _found_name(function, module, owner)


def is_of_smelt(function: types.FunctionType) -> bool:
    return function.__code__.co_filename.startswith(_code_folders()[1])


@functools.cache
def _code_folders() -> tuple[str, ...]:
    return (os.path.join(torch.__path__[0], ""), PACKAGE)


def _found_name(function: Any, module: str, owner: Any) -> str:
    """The name under which a function is found again in its module."""
    place = owner if owner is not None else sys.modules.get(module)
    for name in (function.__name__, function.__qualname__):
        value: Any = place
        for part in name.split("."):
            value = getattr(value, part, None)
        if value is function or (owner is not None and value == function):
            return f"{owner.__qualname__}.{name}" if owner is not None else name
    raise Unstorable(f"{module}.{function.__qualname__} is not found under its name")
