"""What a compiled graph depends on, as one text: equal texts, equal code. The key of the disk cache.

    smelt 7f3a…; torch 2.13.0 …; cpu …; max_rewrites=-1 …; grad=True autocast=… …
    9c41…

A graph is told apart from every other by a digest of its nodes (`graph_json`); versions of all code that takes part,
the processor, the options and the state of the process that tracing depends on come before. What has no form in a file,
a tensor held by the graph or a user's function, has no key: `CannotStore` says why.
"""

import functools
import hashlib
import importlib.util
import os
import platform
import sys
from dataclasses import fields

import torch

from smelt.base.options import Options
from smelt.base.paths import PACKAGE
from smelt.device import device_of, devices, find
from smelt.device.host_costs import in_use
from smelt.ir.graph import Traced
from smelt.ir.nodes.ambient import Ambient
from smelt.ir.serialize import CannotStore
from smelt.meta.devices import current_devices
from smelt.meta.replaced_operators import replaced_operators
from smelt.pipeline.cache.graph_json import digest, dump
from smelt.torch_abi.aoti_shims import connect

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


def key_of(traced: Traced, options: Options) -> str:
    """The text that stands for a graph and all its code depends on."""
    return f"{environment_key(options)}\n{text_of(traced)}"


def text_of(traced: Traced) -> str:
    """A graph's own part of the key."""
    if traced.constants:
        raise CannotStore("the graph holds constant tensors")
    return digest(dump(traced.graph))


def environment_key(options: Options) -> str:
    """The rest of it: all that code depends on besides the graph."""
    _refuse_overrides()
    chosen = [f"{f.name}={getattr(options, f.name)!r}" for f in fields(options) if f.metadata["in_key"]]
    targets = " ".join(f"{device}:{name}" for device, name in devices().items())
    costs = f"costs {in_use().digest or 'by default'}"
    return "\n".join([*installation(), " ".join(chosen), targets, *_chip(options.target), costs, _state()])


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
        raise CannotStore("the processor does not say what it can do") from None
    lines = {f"{name.strip()}: {' '.join(value.split())}" for name, _, value in pairs
             if name.strip().lower() in _PROCESSOR}  # fmt: skip
    if not lines:
        raise CannotStore("the processor does not say what it can do")
    return sorted(lines)


def process_settings() -> str:
    """What code depends on besides its graph, its options and the state of the thread."""
    settings = [f"{name}={getattr(torch._C, name)()}" for name in _SETTINGS if hasattr(torch._C, name)]
    return f"{torch.get_default_dtype()} {current_devices()} {' '.join(settings)}"


def _state() -> str:
    # Whether tables have native calls, and of what kinds: under a mode none is tried.
    native = connect(), torch._C._len_torch_dispatch_stack()
    return f"{Ambient.now()} {process_settings()} {native}"


def _refuse_overrides() -> None:
    """Operators of PyTorch's own that the program replaced are not what their names say."""
    for name in sorted(replaced_operators()):
        raise CannotStore(f"the program replaced an operator of PyTorch's: {name}")
