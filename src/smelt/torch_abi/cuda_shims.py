"""PyTorch's C functions for CUDA, tried before they are used: the current stream, raw memory of its caching allocator.

    connect() → True: launches on a GPU ask PyTorch without Python; False: `runtime/cuda/launcher.py` asks by Python

libtorch_cuda exports them beside those of libtorch (`torch_abi/aoti_shims.py`). Trying them takes a GPU in use, so that
is not done before CUDA is initialized, nor while a CUDA graph is recorded.
"""

import ctypes

import torch

from smelt import _native
from smelt.torch_abi.probe import Experiment, NotFound
from smelt.torch_abi.symbols import find_in_cuda

STREAM = "aoti_torch_get_current_cuda_stream"
ALLOCATE = "aoti_torch_cuda_caching_allocator_raw_alloc"
FREE = "aoti_torch_cuda_caching_allocator_raw_delete"
_BYTES = 4096


def connect() -> bool:
    """Tell the C part where the functions are, if they are there and work; asked again it has the answer ready."""
    if EXPERIMENT.result is not None:
        return True
    initialized: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if not initialized or torch.cuda.is_current_stream_capturing():
        return False
    return EXPERIMENT.why_not() is None


def find_functions() -> dict[str, int]:
    """Addresses by name: of the stream, and of memory too where that works."""
    stream = find_in_cuda(STREAM)
    if stream is None:
        raise NotFound(f"{STREAM} is not exported")
    if not _finds_streams(stream):
        raise NotFound(f"{STREAM} does not say which stream is current")
    functions = {STREAM: stream}
    allocate, free = find_in_cuda(ALLOCATE), find_in_cuda(FREE)
    if allocate is not None and free is not None and _allocates(allocate, free):
        functions |= {ALLOCATE: allocate, FREE: free}
    return functions


EXPERIMENT = Experiment(lambda: find_functions(), _native.set_cuda_library)


def _finds_streams(address: int) -> bool:
    """Whether it is the current stream that is found, be it the usual or another."""
    word, device = ctypes.c_void_p, torch.cuda.current_device()
    current = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(word))(address)

    def is_found() -> bool:
        stream = word(1)
        wanted = torch.cuda.current_stream(device).cuda_stream
        return current(device, ctypes.byref(stream)) == 0 and (stream.value or 0) == wanted

    if not is_found():
        return False
    with torch.cuda.stream(torch.cuda.Stream(device)):  # type: ignore[no-untyped-call]
        return is_found()


def _allocates(allocate: int, free: int) -> bool:
    word = ctypes.c_void_p
    memory = word()
    take = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_uint64, ctypes.POINTER(word))(allocate)
    if take(_BYTES, ctypes.byref(memory)) or not memory.value:
        return False
    failed: int = ctypes.CFUNCTYPE(ctypes.c_int32, word)(free)(memory)
    return failed == 0
