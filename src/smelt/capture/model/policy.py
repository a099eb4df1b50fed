"""What capture does with a callee, by where its code lives: one small table.

INLINE  interpret its bytecode         user code, torch.nn modules, third-party model code
LEAF    one node of the graph          torch functions and tensor methods (`is_torch_leaf`)
BREAK   only Python can run it         everything with effects or frames of its own
"""

import gc
import os
import types
from enum import Enum
from signal import getsignal, valid_signals
from typing import Any

import torch

from smelt.base.coexist import is_allowed_in_graph
from smelt.base.options import config
from smelt.base.paths import PACKAGE
from smelt.base.torch_originals import TORCH as _TORCH
from smelt.base.torch_originals import is_found, own_name

# smelt's own code that capture goes through: stand-ins for library functions, hooks as nodes of a backward, exported
# steps of generation, quantized layers.
_POLYFILLS = tuple(
    os.path.join(PACKAGE, *path)
    for path in (
        ("capture", "polyfills", "by_name.py"),
        ("capture", "polyfills", "library.py"),
        ("capture", "polyfills", "optimizers.py"),
        ("capture", "polyfills", "transforms.py"),
        ("deploy", "generation", "steps.py"),
        ("dispatch", "loss_scaling.py"),
        ("ir", "nodes", "hook_calls.py"),
        ("quantization", "layers.py"),
    )
)
_COMPILED_PROGRAMS = os.path.join(PACKAGE, "generation", "")  # smelt's own code that is compiled as a program's
_STDLIB = os.path.dirname(os.__file__) + os.sep


class Treatment(Enum):
    INLINE = "inline"
    BREAK = "break"


_TORCH_FILES: dict[str, Treatment] = {
    "nn/modules/lazy.py": Treatment.BREAK,
    "nn/modules/": Treatment.INLINE,
    "nn/attention/__init__.py": Treatment.INLINE,
    "nn/attention/_utils.py": Treatment.INLINE,
    "nn/attention/flex_attention.py": Treatment.INLINE,
    "nn/utils/parametrize.py": Treatment.INLINE,
    "nn/utils/parametrizations.py": Treatment.INLINE,
    "backends/mha/": Treatment.INLINE,
    "amp/autocast_mode.py": Treatment.INLINE,
    "autograd/grad_mode.py": Treatment.INLINE,
    "utils/_contextlib.py": Treatment.INLINE,
    "utils/_ordered_set.py": Treatment.INLINE,
    "utils/_pytree.py": Treatment.INLINE,
    "_VF.py": Treatment.INLINE,
    "optim/lbfgs.py": Treatment.BREAK,  # it runs its closure as often as the losses tell it to
    "optim/": Treatment.INLINE,
    "nn/utils/clip_grad.py": Treatment.INLINE,
    "nn/utils/convert_parameters.py": Treatment.INLINE,
    "nn/utils/prune.py": Treatment.INLINE,
    "nn/utils/rnn.py": Treatment.INLINE,
    "nn/utils/spectral_norm.py": Treatment.INLINE,
    "nn/utils/weight_norm.py": Treatment.INLINE,
    "utils/_foreach_utils.py": Treatment.INLINE,
    "amp/grad_scaler.py": Treatment.INLINE,
    "signal/windows/": Treatment.INLINE,
    "distributed/tensor/parallel/style.py": Treatment.INLINE,
    "distributed/_functional_collectives.py": Treatment.INLINE,  # to its operators, and to `process_groups.QUESTIONS`
    "distributions/": Treatment.INLINE,
    "ao/nn/": Treatment.INLINE,
    "ao/quantization/fake_quantize.py": Treatment.INLINE,
    "ao/quantization/observer.py": Treatment.INLINE,
    "ao/quantization/utils.py": Treatment.INLINE,
}

# Of some files a few functions alone: `isinstance(x, nn.Parameter)` is one.
_TORCH_PARTS: dict[str, tuple[str, ...]] = {
    "nn/parameter.py": ("_ParameterMeta.", "_BufferMeta."),
    "__init__.py": ("_check",),
    "distributed/tensor/_api.py": ("distribute_module.<locals>.<lambda>",),
    "fx/graph_module.py": ("GraphModule.recompile.<locals>.call_wrapped", "_WrappedCall.__call__"),
    "_prims_common/__init__.py": ("canonicalize_dim",),
    "_utils.py": ("_maybe_view_chunk_cat", "_chunk_or_narrow_cat"),
    "_jit_internal.py": ("_isinstance", "container_checker"),
    "_higher_order_ops/associative_scan.py": (
        *("associative_scan", "generic_associative_scan", "wrap_combine_fn_flat", "_interleave", "safe_map"),
    ),
    "_higher_order_ops/flex_attention.py": ("math_attention", "_math_attention_inner"),
    "onnx/__init__.py": ("is_in_onnx_export",),
    "jit/__init__.py": ("isinstance",),
    "ao/quantization/quantize.py": ("_observer_forward_hook", "_observer_forward_pre_hook"),
    "jit/_trace.py": ("_script_if_tracing.<locals>.wrapper",),
    "onnx/_internal/torchscript_exporter/_globals.py": ("_InternalGlobals.in_onnx_export",),
}

_STDLIB_INLINE = (
    "contextlib.py",
    "functools.py",
    "heapq.py",
    "collections/__init__.py",
    "dataclasses.py",
    "operator.py",
    "typing.py",
    "unittest/case.py",
    "unittest/util.py",
)

# Of some files a few functions alone: what else is in `inspect` looks at frames and files, in `os` at the system.
_STDLIB_PARTS: dict[str, tuple[str, ...]] = {
    "inspect.py": ("Signature.", "BoundArguments.", "Parameter."),
    "os.py": ("getenv", "_Environ.__getitem__", "_createenviron.<locals>."),
}

# Where functions that were compiled by `torch.compile`, or are kept from it, begin.
_TORCH_COMPILE = tuple(_TORCH + name + os.sep for name in ("_dynamo", "_inductor"))
_DISABLING = _TORCH + os.path.join("_dynamo", "eval_frame.py")
_TAGGING = _TORCH + os.path.join("_dynamo", "mutation_guard.py")
_TAGGED = {"patched_init": "init", "patched_setstate": "setstate"}

# Code that tensors may pass through on their way, and that never starts anything.
_FOLLOWED_ONLY = (
    "<frozen _collections_abc>",
    "<frozen os>",
    *(_STDLIB + name for name in ("typing.py", "operator.py", "dataclasses.py", "inspect.py", "os.py")),
    _STDLIB + "contextlib.py",
    _STDLIB + os.path.join("collections", ""),
    _STDLIB + os.path.join("unittest", ""),
    _TORCH + "__init__.py",
    *(_TORCH + os.path.join("utils", name) for name in ("_pytree.py", "_ordered_set.py")),
    _TORCH + os.path.join("nn", "attention", ""),  # what it sets is put back by who called it
)

# Of those below, the ones that another machine, or the same with other settings, may answer otherwise.
OF_THE_MACHINE: frozenset[str] = frozenset(
    {
        "torch._C._get_privateuse1_backend_name",
        "torch.cuda.amp.common.amp_definitely_not_available",
        "torch.cuda.is_bf16_supported",
        "torch.cuda.is_available",
        "torch.cuda.device_count",
        "torch.get_num_threads",
        *("torch.cpu._is_avx2_supported", "torch.cpu._is_avx512_supported", "torch.cpu._is_avx512_bf16_supported"),
        *("torch.cpu._is_vnni_supported", "torch.cpu._is_amx_tile_supported", "torch.cpu._is_amx_fp16_supported"),
    }
)

# Functions that answer from the process or the type alone: called at capture, and their answer is a constant that the
# process-state guards (or the guards of their arguments) keep true.
EVALUATED: frozenset[str] = OF_THE_MACHINE | {
    "torch.get_default_dtype",
    "torch.are_deterministic_algorithms_enabled",
    "torch._C._get_tracing_state",
    "torch._C._is_tracing",
    "torch._C._is_autocast_available",
    "torch._jit_internal.is_scripting",
    "torch.jit._trace.is_tracing",
    "torch.finfo",
    "torch.iinfo",
    "torch.device",
    "torch.promote_types",
    "torch.result_type",
    "torch.can_cast",
    "torch.typename",
}

# Functions that yield their last argument as it is: notes for a compiler, and for its symbols.
IDENTITIES: frozenset[str] = frozenset(
    {
        "torch.jit.annotate",
        *("torch.fx.experimental.symbolic_shapes." + name for name in ("guard_or_false", "guard_or_true")),
        "torch.fx.experimental.symbolic_shapes.guard_size_oblivious",
    }
)

# Calls that only keep statistics of the process, and one by which torch.optim asks torch.compile for a break.
IGNORED: frozenset[str] = frozenset(
    {"torch._C._log_api_usage_once", *("torch._dynamo.decorators." + name for name in ("graph_break", "mark_static"))}
)

# What the compiled function sees as true of itself.
ANSWERED_TRUE: frozenset[str] = frozenset(
    {"torch.compiler.is_compiling", "torch.compiler.is_dynamo_compiling", "torch._dynamo.external_utils.is_compiling"}
)

# What it sees as false: smelt captures to run, never to ship the graph elsewhere, and not under modes but a default
# device, which is followed without one.
# Nothing compiled runs under a dispatch mode, and so under no tracer that is one.
ANSWERED_FALSE: frozenset[str] = frozenset(
    {
        "torch.compiler.is_exporting",
        "torch.fx.experimental.symbolic_shapes.has_free_unbacked_symbols",
        "torch._C._is_torch_function_mode_enabled",
        "torch.nn.modules.activation._is_make_fx_tracing",
    }
)

# torch callables that look like tensor operators and are not to be recorded as such.
NEVER_LEAVES: frozenset[str] = frozenset(
    {
        "torch.manual_seed",
        "torch.seed",
        "torch.initial_seed",
        "torch.get_rng_state",
        "torch.set_rng_state",
        "torch.set_default_dtype",
        "torch.set_num_threads",
        "torch.use_deterministic_algorithms",
        "torch.from_numpy",
        "torch.save",
        "torch.load",
        "torch.set_printoptions",
        "torch.set_flush_denormal",
        "torch.as_tensor",
        "torch.asarray",
        "torch.frombuffer",
        "torch.from_dlpack",
        "torch.compile",
        "torch.set_autocast_enabled",
        "torch.set_autocast_dtype",
        "torch.autocast_increment_nesting",
        "torch.autocast_decrement_nesting",
        "torch.clear_autocast_cache",
        "torch.set_grad_enabled",
        "torch._C._set_grad_enabled",
        "torch.nn.functional.handle_torch_function",
    }
)

# Tensor methods and attributes whose answer is not in the metadata, with the reason's code.
TENSOR_BREAKS: dict[str, str] = {
    **dict.fromkeys(("item", "tolist", "numpy", "__array__", "__bool__", "__int__", "__float__", "__index__"), "B004"),
    **dict.fromkeys(
        ("data_ptr", "storage", "untyped_storage", "__dlpack__", "is_shared", "is_pinned", "is_set_to", "is_inference"),
        "B004",
    ),
    "storage_offset": "B004",  # guards do not look at it: a slice from elsewhere is the same input
    **dict.fromkeys(
        ("__repr__", "__str__", "__format__", "__hash__", "__reduce__", "__reduce_ex__", "__deepcopy__"), "B004"
    ),
    **dict.fromkeys(("pin_memory", "share_memory_", "apply_", "map_", "map2_", "record_stream"), "B004"),
    **dict.fromkeys(
        ("requires_grad_", "backward", "retain_grad", "register_hook", "detach_", "set_", "resize_"), "B015"
    ),
    **dict.fromkeys(
        ("register_post_accumulate_grad_hook", "resize_as_", "swapaxes_", "t_", "transpose_", "squeeze_"), "B015"
    ),
    **dict.fromkeys(("unsqueeze_", "as_strided_", "rename_", "align_to", "is_leaf", "_is_view", "_version"), "B015"),
    **dict.fromkeys(("grad", "grad_fn", "_base", "_grad", "_backward_hooks", "output_nr", "retains_grad"), "B015"),
}


_TYPES: dict[Any, str] = {
    kind: name
    for kind, name in ((torch.finfo, "torch.finfo"), (torch.iinfo, "torch.iinfo"), (torch.device, "torch.device"))
    if isinstance(kind, type) and not kind.__flags__ & 1 << 9  # of C: nobody has put another class there
}


def known_name(function: Any) -> str:
    """The name the tables above use for a function of PyTorch's own; "" for any other, whatever it calls itself."""
    return _TYPES.get(function, "") if type(function) is type else own_name(function)


def treatment_of_code(code: types.CodeType) -> Treatment:
    """What to do with a Python function, by its file."""
    file = code.co_filename
    if file.startswith(_TORCH):
        inside = file[len(_TORCH) :].replace(os.sep, "/")
        for prefix, treatment in _TORCH_FILES.items():
            if inside.startswith(prefix):
                return treatment
        followed = code.co_qualname.startswith(_TORCH_PARTS.get(inside, ()))
        return Treatment.INLINE if followed else Treatment.BREAK
    if file == "<frozen _collections_abc>":
        return Treatment.INLINE
    if file in _POLYFILLS or file.startswith(_COMPILED_PROGRAMS):
        return Treatment.INLINE
    if file == "<frozen os>":
        file = _STDLIB + "os.py"
    if file.startswith((PACKAGE, "<smelt ", "<frozen")):
        return Treatment.BREAK
    if _is_without_tensors(file):
        return Treatment.BREAK
    if file.startswith(_STDLIB) and "site-packages" not in file:
        inside = file[len(_STDLIB) :].replace(os.sep, "/")
        followed = inside in _STDLIB_INLINE or code.co_qualname.startswith(_STDLIB_PARTS.get(inside, ()))
        return Treatment.INLINE if followed else Treatment.BREAK
    return Treatment.INLINE


def is_of_libraries(code: types.CodeType) -> bool:
    """Whether the code is Python's own library's, or PyTorch's."""
    file = code.co_filename
    of_python = file.startswith("<frozen ") or (file.startswith(_STDLIB) and "site-packages" not in file)
    return of_python or file.startswith(_TORCH)


_ALONE_BUILTINS: tuple[Any, ...] = (print, repr, str, ascii, format)
_ALONE_FILES = (
    _TORCH + os.path.join("nn", "modules", "lazy.py"),
    _TORCH + os.path.join("nn", "init.py"),
    _TORCH + "_tensor_str.py",
    _TORCH + "_tensor.py",
    _TORCH + os.path.join("autograd", "__init__.py"),
    _TORCH + os.path.join("func", ""),
    _TORCH + "_functorch" + os.sep,
    _TORCH + "_higher_order_ops" + os.sep,
    _STDLIB + "logging" + os.sep,
    _STDLIB + "warnings.py",
)


_BACKWARDS = (torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)


def runs_alone(function: Any) -> bool:
    """Whether a call that only Python can run is run with nothing captured inside: text, set-up, backward, transforms.

    Printing a tensor enters dozens of small frames that are called once each, and none is worth a graph; a backward
    pass runs what was compiled before; under `torch.func.vmap` tensors are not what they look like.
    """
    if isinstance(function, types.MethodType):
        function = function.__func__
    if isinstance(function, types.FunctionType):
        file = function.__code__.co_filename
        if config.compiled_autograd and function in _BACKWARDS:
            return False  # compiled as what calls it is
        return file.startswith(_ALONE_FILES) or _is_without_tensors(file) or is_allowed_in_graph(function)
    return any(function is each for each in _ALONE_BUILTINS)


# Packages that compute without tensors: NumPy's Python leads to C at once, SymPy's to thousands of small calls.
_WITHOUT_TENSORS = tuple(f"{os.sep}site-packages{os.sep}{name}{os.sep}" for name in ("numpy", "sympy", "mpmath"))


def _is_without_tensors(file: str) -> bool:
    return any(part in file for part in _WITHOUT_TENSORS)


def is_library(code: types.CodeType) -> bool:
    """Whether the code is of PyTorch, of Python's library, or smelt's own: none of the program's."""
    file = code.co_filename
    if file.startswith((_TORCH, PACKAGE, "<frozen ")) or file.endswith(os.sep + "typing_extensions.py"):
        return True
    return file.startswith(_STDLIB) and "-packages" + os.sep not in file


def is_polyfill(code: types.CodeType) -> bool:
    """Whether the code is smelt's own stand-in for a library function: no line of the program."""
    return code.co_filename in _POLYFILLS


def acts_as_in_eager(code: types.CodeType) -> bool:
    """Whether `is_compiling()` is False to the code: optimizers compute in lower precision if something
    does."""
    return code.co_filename.startswith(os.path.join(_TORCH, "optim", ""))


def decides_by_state(code: types.CodeType) -> bool:
    """Whether the code decides by small tensors that hardly ever change: optimizers by the steps they count, modules of
    quantization by which of their parts are enabled."""
    return acts_as_in_eager(code) or code.co_filename.startswith(os.path.join(_TORCH, "ao", "quantization", ""))


def wrapped_by_torch_compile(function: types.FunctionType) -> str | None:
    """If `torch.compile` put this round a function of PyTorch's own, the name of that function in its closure.

    It does so when it is first used, if only as a decorator: it keeps itself out of `torch.optim`, which it cannot
    follow and capture can, and notes which modules are made when, for itself alone. What the program itself wrapped so
    it wants to run in Python.
    """
    code = function.__code__
    if code.co_filename == _TAGGING:
        return _TAGGED.get(code.co_name)
    if code.co_filename != _DISABLING or code.co_name != "_fn" or "fn" not in code.co_freevars:
        return None
    assert function.__closure__ is not None
    inner = function.__closure__[code.co_freevars.index("fn")].cell_contents
    return "fn" if isinstance(inner, types.FunctionType) and acts_as_in_eager(inner.__code__) else None


_CALLING = torch.nn.Module._call_impl.__code__.co_filename
_DISTRIBUTED = _TORCH + "distributed" + os.sep
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_CALLS = frozenset({torch.nn.Module._wrapped_call_impl.__code__, torch.nn.Module._call_impl.__code__})


def hook_of_library(module: torch.nn.Module) -> str | None:
    """The name of a hook on a module's forward that `torch.distributed` put there and that only Python can run, as
    FSDP's; None if there is none. Then the call of the module is one step of Python's, and not each of its hooks."""
    for registry in _HOOKS:
        for hook in (module.__dict__.get(registry) or {}).values():
            function = hook.__func__ if type(hook) is types.MethodType else hook
            function = getattr(function, "__wrapped__", function)  # one that `torch.compile` is kept from
            if type(function) is not types.FunctionType or not function.__code__.co_filename.startswith(_DISTRIBUTED):
                continue
            if treatment_of_code(function.__code__) is Treatment.BREAK:
                return str(function.__qualname__)
    return None


def calls_library_hooks(function: types.FunctionType, slots: tuple[Any, ...]) -> bool:
    """Whether a frame is the call of a module that has such a hook."""
    code = function.__code__
    if code in _CALLS:
        module = slots[0]
    elif code.co_qualname == "Module._call_impl.<locals>.inner" and code.co_filename == _CALLING:
        assert function.__closure__ is not None
        module = function.__closure__[code.co_freevars.index("self")].cell_contents
    else:
        return False
    return issubclass(type(module), torch.nn.Module) and hook_of_library(module) is not None


def is_layer(code: types.CodeType) -> bool:
    """Whether the code is of `torch.nn.modules`."""
    return code.co_filename.startswith(os.path.join(_TORCH, "nn", "modules", ""))


def is_transform(code: types.CodeType) -> bool:
    """Whether the code is of `torch.func`: `grad`, `vmap`, and the functions they yield."""
    return code.co_filename.startswith(os.path.join(_TORCH, "_functorch"))


def frame_is_worth_capturing(code: types.CodeType) -> bool:
    """Whether a frame met while a region is active is looked at at all."""
    generator = 0x20 | 0x80 | 0x100 | 0x200
    if code.co_flags & generator or not code.co_flags & 0x1:
        return False
    if code.co_filename.startswith(_TORCH) and code.co_name.startswith("__"):
        return False  # entering no_grad, looking up a submodule: followed inside a graph, no graph of its own
    if code.co_filename.startswith(_FOLLOWED_ONLY):
        return False
    if code.co_filename == "<string>" and code.co_name.startswith("__"):
        return False  # what a dataclass writes for itself
    return treatment_of_code(code) is Treatment.INLINE


def frame_runs_alone(code: types.CodeType) -> bool:
    """Whether a frame met while a region is active is left alone with all that it calls: `torch.compile`'s, imports,
    and what Python calls in the middle of a program."""
    if code.co_filename.startswith(_TORCH_COMPILE) or code.co_filename == "<frozen importlib._bootstrap>":
        return True
    if code.co_name == "__del__":
        return True
    return any(_is_code_of(each, code) for each in (*gc.callbacks, *map(getsignal, _SIGNALS)))


_SIGNALS = sorted(valid_signals())


def _is_code_of(function: object, code: types.CodeType) -> bool:
    if type(function) is types.MethodType:
        function = function.__func__
    return type(function) is types.FunctionType and function.__code__ is code


_LEAF_MODULES = frozenset(
    {
        "torch",
        "torch._C._nn",
        "torch._C._linalg",
        "torch._C._fft",
        "torch._C._special",
        "torch.functional",
        "torch.nn.functional",
        "torch.special",
        "torch.linalg",
        "torch.fft",
        "torch._tensor",
    }
)


def is_torch_leaf(function: Any) -> bool:
    """Whether a callable is a torch operator: something that maps tensors to tensors."""
    if issubclass(type(function), torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return is_found(function)
    if type(function) not in (types.BuiltinFunctionType, types.FunctionType):
        return False
    name = own_name(function)
    module, _, short = name.rpartition(".")
    if module not in _LEAF_MODULES or name in NEVER_LEAVES or name in EVALUATED:
        return False
    return not short.startswith(("set_", "_set_"))
