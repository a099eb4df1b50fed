"""What a user can set: `Options` for one `smelt.compile`, `config` for the process.

`Options` is frozen and travels with each compilation; its fields say in their metadata what they do and whether they
change the code that comes out (and so belong to a cache key). `config` is the process-wide switchboard; unknown names
and wrong types are errors at once.
"""

import dataclasses
import os
import typing
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from smelt.base.errors import SmeltError
from smelt.base.fast_dataclass import dataclass


def option(default: Any, doc: str, *, in_key: bool) -> Any:
    """A documented field; `in_key` says whether it changes the generated code."""
    return field(default=default, metadata={"doc": doc, "in_key": in_key})


def _check_type(owner: str, name: str, value: object, expected: Any) -> None:
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        return
    kinds = typing.get_args(expected) or (expected,)
    allowed = isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds)
    if not allowed:
        wanted = getattr(expected, "__name__", str(expected))
        raise SmeltError("SM003", f"{owner} {name!r} must be {wanted}, not {type(value).__name__} ({value!r})")


def _check_name(owner: str, name: str, known: Mapping[str, Any]) -> None:
    if name not in known:
        raise SmeltError("SM003", f"unknown {owner} {name!r}", hint="choose from " + ", ".join(sorted(known)))


MODES = {
    "default": "chosen for the processor; nothing is ever timed",
    "max-speed": "each graph is compiled in several ways at its first call: with each value of `convolutions`, with "
    "`products` at `own` on a CPU, without `recompute` (which takes more memory), and with one thread. Options that "
    "you set are not varied. The versions are timed, interleaved, on random inputs; the fastest is used, and stored on "
    "disk with the graph. Graphs with dynamic shapes are compiled as by default",
    "reduce-overhead": "`torch.compile`'s name; `default` with the option `cuda_graphs` at `always`",
    "max-autotune": "`torch.compile`'s name; the same as `max-speed`",
    "max-autotune-no-cudagraphs": "`torch.compile`'s name; `max-speed` with the option `cuda_graphs` at `never`",
}
TUNING_MODES = ("max-speed", "max-autotune", "max-autotune-no-cudagraphs")
CUDA_GRAPHS = ("auto", "always", "never")
GRAPHS_OF_MODES = {"reduce-overhead": "always", "max-autotune-no-cudagraphs": "never"}  # values of `cuda_graphs`
CONVOLUTIONS = ("auto", "library", "products", "channels_last")
PRODUCTS = ("auto", "library", "own")
LIBRARY = ("torch", "none")
COMPILE = ("blocking", "background")
KERNELS_FIRST = "rest"  # of `library`, on chips: torch for what no kernel computes, and for nothing else


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of one compilation. `Options.from_user({...})` checks names and types."""

    max_rewrites: int = option(
        -1, "how many optional rewrites to apply; -1 applies all. `smelt bisect` sets it", in_key=True
    )
    check_specs: bool = option(
        False, "check the invariants of graphs, kernels and programs after every pass", in_key=False
    )
    threads: int = option(0, "threads of generated loops; 0 follows torch.get_num_threads()", in_key=False)
    recompute: bool = option(True, "recompute cheap values in backward instead of saving them", in_key=True)
    memory_budget: int | float | None = option(
        None,
        "recompute more in backward so that a step takes less memory: the peak in bytes (int), or a fraction of the "
        "bytes that are saved by default (float from 0 to 1)",
        in_key=True,
    )
    eager_random: bool = option(
        False,
        "draw the same random numbers as eager, bit for bit; without it, only the distribution is guaranteed",
        in_key=True,
    )
    tune: bool = option(
        False,
        "time alternatives for each graph and keep the fastest; `mode=\"max-speed\"` sets it",
        in_key=False,
    )
    convolutions: str = option(
        "auto",
        "how convolutions are computed: by the `library`, as matrix `products`, by the library with channels last "
        "(`channels_last`), or `auto`: chosen for the processor",
        in_key=True,
    )
    products: str = option(
        "auto",
        "how matmuls and attention (products) are computed: by the `library`, by generated kernels (`own`) wherever "
        "the target has code for them, or `auto`: chosen for each product",
        in_key=True,
    )
    library: str = option(
        "torch",
        "what computes operators without a kernel: `torch`, or `none`: all operators must be kernels, matmuls and "
        "convolutions too; otherwise an error names the operators (`fallback` is off)",
        in_key=True,
    )
    target: str = option(
        "",
        "the target of the generated code, for example `sm_90`; empty: chosen by the devices of the tensors. A GPU "
        "target applies only to tensors on GPUs, a CPU target only to tensors on the CPU",
        in_key=True,
    )
    cuda_graphs: str = option(
        "auto",
        "whether a compiled graph whose calls repeat is recorded as a CUDA graph, and launched as one: `always`, "
        "`never`, or `auto`: if the GPU waits for the host, and the CUDA graph takes little memory",
        in_key=False,
    )
    compile: str = option(
        "blocking",
        "when graphs are compiled: `blocking`, the first call waits for its code, or `background`, calls run in eager "
        "until another thread has compiled the graph",
        in_key=False,
    )
    fallback: bool = option(
        True, "if a graph cannot be compiled, warn and run it in eager; otherwise raise", in_key=False
    )

    @classmethod
    def from_user(cls, options: Mapping[str, Any] | None) -> "Options":
        """Checked construction from the `options=` mapping of `smelt.compile`."""
        options = dict(options or {})
        kinds = typing.get_type_hints(cls)
        for name, value in options.items():
            _check_name("option", name, kinds)
            _check_type("option", name, value, kinds[name])
        budget = options.get("memory_budget")
        if budget is not None and not (budget >= 0 and (isinstance(budget, int) or budget <= 1)):
            raise SmeltError("SM003", f"memory_budget is bytes (an int) or a part from 0.0 to 1.0, not {budget!r}")
        named = {
            "convolutions": CONVOLUTIONS, "products": PRODUCTS, "library": LIBRARY, "cuda_graphs": CUDA_GRAPHS,
            "compile": COMPILE,
        }  # fmt: skip
        for name, choices in named.items():
            if options.get(name, choices[0]) not in choices:
                raise SmeltError("SM003", f"unknown {name} {options[name]!r}", hint="choose from " + ", ".join(choices))
        if options.get("library") == "none":
            options |= {"products": "own", "fallback": False}  # eager is the library, too
        return cls(**options)


@dataclass(slots=True)
class Config:
    """Process-wide settings, `smelt.config`. Assignment checks names and types."""

    verbose: bool = option(False, "print the whole traceback when something falls back to eager", in_key=False)
    suppress_errors: bool = option(True, "fall back to eager, with a warning, on a compiler error", in_key=False)
    cache_size_limit: int = option(
        8, "how many versions of one frame are compiled before it runs eagerly", in_key=False
    )
    leave_slow_code: bool = option(
        True,
        "time functions with graph breaks, compiled and in eager, and run them in eager if that is faster; functions "
        "that are one graph are never timed",
        in_key=False,
    )
    check_specs: bool = option(
        False,
        "check the invariants of graphs, kernels and programs after every pass, in every compilation",
        in_key=False,
    )
    disk_cache: bool = option(
        True,
        "store captures and compiled graphs on disk for later processes; `SMELT_CACHE=0` turns it off too",
        in_key=False,
    )
    disk_cache_dir: str = option(
        "", "its directory; empty: $SMELT_CACHE_DIR, else $XDG_CACHE_HOME/smelt, else ~/.cache/smelt", in_key=False
    )
    disk_cache_limit: int = option(
        1 << 30,
        "the maximum size of the disk cache in bytes; the least recently used files are deleted first",
        in_key=False,
    )
    progress: bool = option(
        True,
        "print to a terminal which graph is being compiled if it takes longer than a second; never in CI",
        in_key=False,
    )
    compiled_autograd: bool = option(
        False, "capture and compile every backward as the autograd engine runs it, hooks included", in_key=False
    )

    capture_data: bool = option(
        False,
        "capture data-dependent sizes, integers and branches, without `fullgraph=True` too: a graph assumes them and "
        "checks them; if a check fails, the function is captured again, up to eight times",
        in_key=False,
    )
    chip_fallback: bool = option(
        True, "if an operator has no kernel on a chip, warn and let the host compute it; otherwise raise", in_key=False
    )

    def __setattr__(self, name: str, value: object) -> None:
        kinds = typing.get_type_hints(type(self))
        _check_name("setting", name, kinds)
        _check_type("setting", name, value, kinds[name])
        before = getattr(self, name, None)
        object.__setattr__(self, name, value)
        for tell in _told.get(name, ()):
            tell(before, value)


# Called when a setting changes, with what it was and what it is.
_told: dict[str, list[Callable[[object, object], None]]] = {}


def when_set(name: str, tell: Callable[[object, object], None]) -> None:
    """Have `tell(before, now)` called when a setting is assigned."""
    _told.setdefault(name, []).append(tell)


config = Config()

# What the environment says, beside `SMELT_LOGS` (see `base/events.py`).
ENVIRONMENT: dict[str, str] = {
    "SMELT_ALLOWED_FILES": (
        "SHA-256 hashes, 64 hexadecimal digits each, between commas: no other exported files are opened "
        "([security](security.md))"
    ),
    "SMELT_CACHE": "`0`: store nothing on disk, whatever `smelt.config.disk_cache` is",
    "SMELT_CACHE_DIR": "the directory of the disk cache, unless `smelt.config.disk_cache_dir` is set",
    "SMELT_DISABLE": (
        "`1`: compile nothing. `smelt.compile` returns its argument, `torch.compile(…, backend=\"smelt\")` runs graphs "
        "in eager, compiled autograd is off. Exports and `smelt.lazy` still work"
    ),
    "SMELT_LIBCUDA": "the path of the CUDA driver's library; by default the dynamic linker finds `libcuda.so.1`",
    "SMELT_LOGS": "what to print while compiling; the channels are listed below",
    "SMELT_NO_LAYOUT": (
        "`1`: do not read PyTorch's memory directly. By default smelt finds the memory layout of tensors and autograd "
        "nodes by experiment when a process starts. With `1`, results are the same but calls are slower: guards and "
        "library calls go through Python, and compiled autograd falls back to the engine"
    ),
    "SMELT_TRUSTED_KEYS": (
        "Ed25519 public keys, 64 hexadecimal digits each, between commas: exported files are opened only if they are "
        "signed by one of them ([security](security.md))"
    ),
}


def is_disabled() -> bool:
    """Whether the environment says to compile nothing."""
    return os.environ.get("SMELT_DISABLE", "") not in ("", "0")


def describe(kind: type) -> list[tuple[str, object, str]]:
    """(name, default, what it does) of every field of `Options` or `Config`, for the docs and the command line."""
    return [(f.name, f.default, f.metadata["doc"]) for f in dataclasses.fields(kind)]
