"""PyTorch's C interface, found by name in the running process and tried before it is used.

    connect() → True: `_native.Runner` may call it; False: Python makes all calls

libtorch exports plain C functions (`aoti_torch_…`) that take a tensor as a handle, which is the address of an
`at::Tensor`. Each Python tensor has one inside: where is found by experiment (`torch_abi/probe.py`), and that a handle
made this way is understood is tried on tensors of several kinds. If anything is missing, or answers other than it
should, nothing of it is used.
"""

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt import _native
from smelt.base.fast_dataclass import dataclass
from smelt.torch_abi.probe import WORD, Experiment, NotFound, find_body, find_place, read_bytes, read_words
from smelt.torch_abi.symbols import find_in_bindings, find_in_cuda, find_symbol

_NEEDED = (
    "aoti_torch_get_data_ptr",
    "aoti_torch_empty_strided",
    "aoti_torch__reinterpret_tensor",
    "aoti_torch_delete_tensor_object",
    "aoti_torch_new_tensor_handle",
)
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")
_CUDA_CALLS = tuple(f"aoti_torch_cuda_{name}_out" for name in PRODUCTS)
# What calls of operators take (`boxed_calls.py`); any may be missing.
_CALLS = (
    *(f"aoti_torch_cpu_{name}_out" for name in PRODUCTS),
    "torch_call_dispatcher",
    "aoti_torch_abi_version",
    "torch_new_list_reserve_size",
    "torch_list_push_back",
    "torch_list_size",
    "torch_list_get_item",
    "torch_delete_list",
    "torch_new_string_handle",
    "torch_new_stable_ivalue",
    "_Znwm",  # C++'s operator new, for versions without the one before
    "aoti_torch_get_dim",
    "aoti_torch_get_sizes",
    "aoti_torch_get_strides",
    "aoti_torch_get_dtype",
    "aoti_torch_dtype_element_size",
)
# Questions about one tensor: what is asked for, a tensor, and the answer.
_QUESTIONS: dict[str, tuple[Any, Callable[[], torch.Tensor], int]] = {
    "aoti_torch_get_device_index": (ctypes.c_int32, lambda: torch.empty(2, device="cpu"), -1),
    "aoti_torch_item_bool": (ctypes.c_bool, lambda: torch.tensor(True, device="cpu"), True),
}
# The Python object of a tensor, given the address of the tensor: one function, as two versions of PyTorch declare it.
_WRAP = ("_Z16THPVariable_WrapRKN2at10TensorBaseE", "_Z16THPVariable_WrapN2at10TensorBaseE")

_STORAGE_WORDS = 9  # of a storage that are looked at; it is longer in every version so far


@dataclass(frozen=True, slots=True)
class Library:
    """What `_native.set_library` takes: byte offsets, 0 where not known, and the addresses of functions by name."""

    body: int
    storage: int
    memory: tuple[int, int, int]
    functions: dict[str, int]


def connect() -> bool:
    """Tell the C part where the interface is, if it is there and works; asked again it has the answer ready."""
    return EXPERIMENT.why_not() is None


def find_library() -> Library:
    """The interface of this PyTorch."""
    with torch.no_grad():
        symbols = {name: find_symbol(name) for name in _NEEDED}
        symbols["wrap"] = next((address for name in _WRAP if (address := find_in_bindings(name))), None)
        if missing := [name for name, address in symbols.items() if not address]:
            raise NotFound(f"{missing[0]} is not exported")
        addresses = {name: address for name, address in symbols.items() if address is not None}
        samples = _samples()
        body = find_body(samples)
        if not _works(addresses, body, samples):
            raise NotFound("exported functions do not do what they should")
        addresses |= {name: address for name in _CALLS if (address := find_symbol(name)) is not None}
        addresses |= {name: address for name in _CUDA_CALLS if (address := find_in_cuda(name)) is not None}
        addresses |= _answered_questions(body)
        return Library(body, _storage_place(samples), _memory_places(), addresses)


def _answered_questions(body: int) -> dict[str, int]:
    symbols = {name: address for name in _QUESTIONS if (address := find_symbol(name)) is not None}
    return {name: address for name, address in symbols.items() if _is_answered(name, address, body)}


def _is_answered(name: str, address: int, body: int) -> bool:
    kind, sample, wanted = _QUESTIONS[name]
    tensor, answer = sample(), kind(not wanted)
    ask = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(kind))(address)
    return not ask(id(tensor) + body, ctypes.byref(answer)) and answer.value == wanted


def _install(lib: Library) -> None:
    _native.set_library(torch.Tensor, torch.nn.Parameter, lib.body, lib.storage, lib.memory, lib.functions)


EXPERIMENT = Experiment(lambda: find_library(), _install)


@functools.cache
def dtype_code(dtype: torch.dtype) -> int:
    """The number of a dtype in the interface; -1 if it has none."""
    address = find_symbol(f"aoti_torch_dtype_{str(dtype).removeprefix('torch.')}")
    return -1 if address is None else int(ctypes.CFUNCTYPE(ctypes.c_int32)(address)())


def device_code(device: torch.device) -> tuple[int, int] | None:
    """The numbers of a device in the interface, its type's and its own; None if tensors there are not for the interface
    to make."""
    kind = _device_type(device.type) if device.type in ("cpu", "cuda") else None
    return None if kind is None else (kind, -1 if device.index is None else device.index)


@functools.cache
def _device_type(name: str) -> int | None:
    address = find_symbol(f"aoti_torch_device_type_{name}")
    return None if address is None else int(ctypes.CFUNCTYPE(ctypes.c_int32)(address)())


def _samples() -> list[torch.Tensor]:
    plain = torch.empty(7, 11, 13, device="cpu")
    strided = [plain, plain[2:, 3], plain[1].t(), torch.empty((), device="cpu"), torch.empty(0, 5, device="cpu")]
    integers = torch.empty(17, dtype=torch.int64, device="cpu")
    return [*strided, integers, torch.nn.Parameter(torch.empty(3, device="cpu"))]


def _storage_place(samples: Sequence[torch.Tensor]) -> int:
    """How many bytes into its body a tensor has the address of its storage; 0 if that is not clear."""
    rows = [read_words(t._cdata, 8) for t in samples]
    try:
        return find_place(rows, [t.untyped_storage()._cdata for t in samples], "the storage", first=1) * WORD
    except NotFound:
        return 0


def _memory_places() -> tuple[int, int, int]:
    """How many bytes into a storage the address of its memory is, its size, and whether PyTorch allocated it; zeros if
    that is not clear. Of memory that it did not allocate the owner is noted too, which is why some is among these."""
    numbers = torch.arange(96, dtype=torch.uint8, device="cpu")
    borrowed = [torch.frombuffer(bytearray(size), dtype=torch.uint8) for size in (24, 104)]
    storages = [t.untyped_storage() for t in (numbers, numbers[:40].clone(), *borrowed)]
    words = [read_words(each._cdata, _STORAGE_WORDS) for each in storages]
    flags = [read_bytes(each._cdata, _STORAGE_WORDS * WORD) for each in storages]
    try:
        data = find_place(words, [each.data_ptr() for each in storages], "memory", first=1)
        size = find_place(words, [each.nbytes() for each in storages], "its size", first=1)
        own = find_place(flags, [int(each.resizable()) for each in storages], "whose it is", first=1)
    except NotFound:
        return (0, 0, 0)
    return (data * WORD, size * WORD, own)


def _works(addresses: dict[str, int], body: int, samples: Sequence[torch.Tensor]) -> bool:
    """Whether handles made of Python tensors are understood, and what the interface makes is what was asked for."""

    def function(name: str, *arguments: Any) -> Callable[..., Any]:
        callable_function: Callable[..., Any] = ctypes.CFUNCTYPE(ctypes.c_int32, *arguments)(addresses[name])
        return callable_function

    word, number, numbers = ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)
    data_ptr = function("aoti_torch_get_data_ptr", word, ctypes.POINTER(word))
    empty = function("aoti_torch_empty_strided", number, numbers, numbers, *[ctypes.c_int32] * 3, ctypes.POINTER(word))
    view = function("aoti_torch__reinterpret_tensor", word, number, numbers, numbers, number, ctypes.POINTER(word))
    drop = function("aoti_torch_delete_tensor_object", word)
    copy = function("aoti_torch_new_tensor_handle", word, ctypes.POINTER(word))
    wrap = ctypes.PYFUNCTYPE(ctypes.py_object, word)(addresses["wrap"])

    def wrapped(handle: ctypes.c_void_p) -> Any:
        tensor = wrap(handle)
        drop(handle)
        return tensor

    for tensor in samples:
        handle, address, copied, viewed = word(id(tensor) + body), word(), word(), word()
        if data_ptr(handle, ctypes.byref(address)) or (address.value or 0) != tensor.data_ptr():
            return False
        # A handle of its own: as some versions declare it, the function may take what is in it.
        if copy(handle, ctypes.byref(copied)) or wrapped(copied) is not tensor:
            return False
        if tensor.numel():
            if view(handle, 1, (number * 1)(1), (number * 1)(1), 0, ctypes.byref(viewed)):
                return False
            first = wrapped(viewed)
            if first.data_ptr() != tensor.data_ptr() or first.shape != (1,) or first.dtype is not tensor.dtype:
                return False
    new = word()
    if empty(2, (number * 2)(3, 5), (number * 2)(1, 3), dtype_code(torch.float32), 0, -1, ctypes.byref(new)):
        return False
    tensor = wrapped(new)
    like = torch.empty_strided((3, 5), (1, 3), dtype=torch.float32, device="cpu")
    layout = (type(tensor), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
    return layout == (torch.Tensor, like.shape, like.stride(), like.dtype, like.device)
