"""What recording a CUDA graph takes of Python: a stream to record on, and memory that stays with the graphs.

    side = RECORDERS["auto"].begin(device)     allocations of this thread now belong to the graphs of the current stream
    side.stream                                the driver's handle of the stream to record on, which is current now
    side.end()

All graphs of a stream share one pool of memory: they run one after the other, and nothing in it outlives a launch
(`csrc/gpu/replay.c`). The pool is freed with the last graph that has it.
"""

import functools
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from weakref import WeakValueDictionary

import torch

from smelt import _native
from smelt.runtime.cuda.memory import offer_spare


class GraphMemory:
    """The pool of memory of a stream's graphs, for as long as one of them is there."""

    def __init__(self) -> None:
        self.pool: Any = torch.cuda.MemPool()

    def __del__(self) -> None:
        # Freeing memory is not allowed while the program itself records a graph.
        if not sys.is_finalizing() and hasattr(self, "pool") and torch.cuda.is_current_stream_capturing():
            _freed_later.append(self.pool)


class Side:
    """A recording under way: its stream is current, and allocations of this thread belong to its memory."""

    def __init__(self, device: int, stream: Any, memory: GraphMemory) -> None:
        self.stream: int = stream.cuda_stream
        self.memory = memory
        with ExitStack() as stack:
            stack.enter_context(torch.cuda.use_mem_pool(memory.pool, device))
            stack.enter_context(torch.cuda.stream(stream))
            self._stack = stack.pop_all()

    def end(self) -> None:
        try:
            self._stack.close()
        finally:
            _under_way.clear()


# By device and stream. Streams stay: PyTorch keeps workspaces of libraries for each.
_streams: dict[tuple[int, int], Any] = {}
_memories: "WeakValueDictionary[tuple[int, int], GraphMemory]" = WeakValueDictionary()
_freed_later: list[Any] = []
_under_way: dict[str, object] = {}  # the one recording of the process: two could not share a stream and its memory


class Recorder:
    """`_native.GraphRecorder`. `always`: of programs too whose graphs would take much memory, or would not pay."""

    def __init__(self, always: bool) -> None:
        self.always = always

    def begin(self, device: int) -> Side | None:
        """A recording; None while the caller, or another thread, records a graph."""
        token = object()
        if torch.cuda.is_current_stream_capturing() or _under_way.setdefault("token", token) is not token:
            return None
        _freed_later.clear()
        try:
            return Side(device, *_side_of(device))
        except BaseException:
            _under_way.clear()
            raise

    @property
    def questions(self) -> "tuple[Question, ...]":
        """Functions, and what to call them with, for the settings of PyTorch that library calls follow."""
        return _questions()


Question = tuple[Callable[..., Any], tuple[str, ...]]


def _side_of(device: int) -> tuple[Any, GraphMemory]:
    key = device, torch.cuda.current_stream(device).cuda_stream
    stream, memory = _streams.get(key), _memories.get(key)
    with torch.cuda.device(device):  # whose memory it is
        if stream is None:
            external: Any = torch.cuda.ExternalStream  # which PyTorch does not type
            stream = _streams[key] = external(_native.cuda_new_stream(device), device)
        if memory is None:
            memory = _memories[key] = GraphMemory()
    return stream, memory


def _free_graphs() -> bool:
    return _native.free_cuda_graphs() > 0


offer_spare(_free_graphs)


@functools.cache
def _questions() -> tuple[Question, ...]:
    names = (
        "_get_cublas_allow_tf32", "_get_cublas_allow_fp16_reduced_precision_reduction",
        "_get_cublas_allow_bf16_reduced_precision_reduction", "_get_cublas_allow_fp16_accumulation",
        "_get_blas_preferred_backend", "_get_cudnn_allow_tf32", "_get_cudnn_benchmark", "_get_cudnn_deterministic",
        "_get_cudnn_enabled", "_get_deterministic_algorithms", "_get_float32_matmul_precision",
    )  # fmt: skip
    questions: list[Question] = [(getattr(torch._C, name), ()) for name in names if hasattr(torch._C, name)]
    precision = getattr(torch._C, "_get_fp32_precision_getter", None)
    if precision is not None:
        questions += [(precision, ("cuda", operations)) for operations in ("all", "matmul", "conv", "rnn")]
        questions.append((precision, ("generic", "all")))
    return tuple(questions)


RECORDERS: dict[str, Recorder | None] = {"auto": Recorder(False), "always": Recorder(True), "never": None}
"""By the value of the option `cuda_graphs`."""
