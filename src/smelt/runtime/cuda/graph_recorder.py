"""What recording a CUDA graph takes of Python: a stream to record on, and memory that stays with the graphs.

    side = RECORDERS["auto"].begin(device)     allocations of this thread now belong to the graphs of the current stream
    side.stream                                the driver's handle of the stream to record on, which is current now
    side.end()

All graphs of a stream share one pool of memory: they run one after the other, and nothing in it outlives a launch
(`csrc/gpu/replay.c`).
"""

import functools
from contextlib import ExitStack
from typing import Any

import torch

_MOST_STREAMS = 32  # whose pools are kept; PyTorch itself has 32 of a priority


class Side:
    """A recording under way."""

    def __init__(self, device: int, stream: Any, pool: Any) -> None:
        self.stream: int = stream.cuda_stream
        self._stack = ExitStack()
        self._stack.enter_context(torch.cuda.stream(stream))
        self._stack.enter_context(torch.cuda.use_mem_pool(pool, device))

    def end(self) -> None:
        self._stack.close()


_sides: dict[tuple[int, int], tuple[Any, Any]] = {}  # by device and stream: a stream, and the pool


class Recorder:
    """`_native.GraphRecorder`. `always`: of programs too whose graphs would take much memory."""

    def __init__(self, always: bool) -> None:
        self.always = always

    def begin(self, device: int) -> Side | None:
        """A recording; None while the caller records a graph."""
        if torch.cuda.is_current_stream_capturing():
            return None
        key = device, torch.cuda.current_stream(device).cuda_stream
        if key not in _sides:
            if len(_sides) >= _MOST_STREAMS:
                return None  # graphs that were recorded have its memory for good
            stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            _sides.setdefault(key, (stream, torch.cuda.MemPool()))
        return Side(device, *_sides[key])

    def settings(self) -> int:
        """A number for PyTorch's settings that library calls follow: a recorded call has those of its recording."""
        return hash(tuple([ask() for ask in _settings()]))


@functools.cache
def _settings() -> tuple[Any, ...]:
    names = (
        "_get_cublas_allow_tf32", "_get_cublas_allow_fp16_reduced_precision_reduction",
        "_get_cublas_allow_bf16_reduced_precision_reduction", "_get_cublas_allow_fp16_accumulation",
        "_get_blas_preferred_backend", "_get_cudnn_allow_tf32", "_get_cudnn_benchmark", "_get_cudnn_deterministic",
        "_get_cudnn_enabled", "_get_deterministic_algorithms", "_get_float32_matmul_precision",
    )  # fmt: skip
    return tuple(getattr(torch._C, name) for name in names if hasattr(torch._C, name))


RECORDERS: dict[str, Recorder | None] = {"auto": Recorder(False), "always": Recorder(True), "never": None}
"""By the value of the option `cuda_graphs`."""
