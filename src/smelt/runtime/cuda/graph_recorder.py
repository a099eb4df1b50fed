"""What recording a CUDA graph takes of Python: a stream to record on, and memory that stays with the graphs.

    side = RECORDERS["auto"].begin(device)     allocations of this thread now belong to the graphs of the current stream
    side.stream                                the driver's handle of the stream to record on, which is current now
    side.end()

All graphs of a stream share one pool of memory: they run one after the other, and nothing in it outlives a launch
(`csrc/gpu/replay.c`).
"""

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from smelt import _native


class Side:
    """A recording under way: its stream is current, and allocations of this thread belong to its pool."""

    def __init__(self, device: int, stream: Any, pool: Any) -> None:
        self.stream: int = stream.cuda_stream
        with ExitStack() as stack:
            stack.enter_context(torch.cuda.use_mem_pool(pool, device))
            stack.enter_context(torch.cuda.stream(stream))
            self._stack = stack.pop_all()

    def end(self) -> None:
        try:
            self._stack.close()
        finally:
            _under_way.clear()


_sides: dict[tuple[int, int], tuple[Any, Any]] = {}  # by device and stream: a stream, and the pool
_under_way: dict[str, object] = {}  # the one recording of the process: two could not share a stream and a pool


class Recorder:
    """`_native.GraphRecorder`. `always`: of programs too whose graphs would take much memory."""

    def __init__(self, always: bool) -> None:
        self.always = always

    def begin(self, device: int) -> Side | None:
        """A recording; None while the caller, or another thread, records a graph."""
        token = object()
        if torch.cuda.is_current_stream_capturing() or _under_way.setdefault("token", token) is not token:
            return None
        try:
            return Side(device, *_side_of(device))
        except BaseException:
            _under_way.clear()
            raise

    def settings(self) -> int:
        """A hash of the settings of PyTorch that library calls follow: recorded calls keep them."""
        return hash(tuple([_answer(*question) for question in _questions()]))


def _side_of(device: int) -> tuple[Any, Any]:
    key = device, torch.cuda.current_stream(device).cuda_stream
    side = _sides.get(key)
    if side is None:
        with torch.cuda.device(device):  # whose pool it is
            stream: Any = torch.cuda.ExternalStream  # which PyTorch does not type
            side = stream(_native.cuda_new_stream(device), device), torch.cuda.MemPool()
        _sides[key] = side
    return side


def _answer(ask: Callable[..., Any], *about: str) -> Any:
    try:
        return ask(*about)
    except RuntimeError:
        return None  # settings were made by the newer functions, which are asked too


@functools.cache
def _questions() -> tuple[tuple[Any, ...], ...]:
    names = (
        "_get_cublas_allow_tf32", "_get_cublas_allow_fp16_reduced_precision_reduction",
        "_get_cublas_allow_bf16_reduced_precision_reduction", "_get_cublas_allow_fp16_accumulation",
        "_get_blas_preferred_backend", "_get_cudnn_allow_tf32", "_get_cudnn_benchmark", "_get_cudnn_deterministic",
        "_get_cudnn_enabled", "_get_deterministic_algorithms", "_get_float32_matmul_precision",
    )  # fmt: skip
    questions = [(getattr(torch._C, name),) for name in names if hasattr(torch._C, name)]
    precision = getattr(torch._C, "_get_fp32_precision_getter", None)
    if precision is None:
        return tuple(questions)
    newer = [(precision, "cuda", operations) for operations in ("all", "matmul", "conv", "rnn")]
    return (*questions, *newer, (precision, "generic", "all"))


RECORDERS: dict[str, Recorder | None] = {"auto": Recorder(False), "always": Recorder(True), "never": None}
"""By the value of the option `cuda_graphs`."""
