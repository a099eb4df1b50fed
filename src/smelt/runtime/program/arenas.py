"""Arenas: the planned memory that programs work in, kept between calls.

    arenas = Arenas()                                   shared by the halves of a training step, which run in turn
    acquire = arenas.acquirer(4096, [device], views)    acquire() → the tensors of views(), in memory no other call has
    arenas.release(acquired)

An arena is one block of memory with the views that library calls and kernels need already made: pages are faulted in
once. Calls that overlap in time each acquire their own. What a GPU does on a stream it does in order, so the next call
on the same stream may have an arena whose last kernels still run, and one on another stream may not: arenas are kept by
stream. A call that is recorded into a CUDA graph gets memory of that graph, which nobody else may have. Where a GPU has
no memory left, free arenas are let go.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from weakref import WeakKeyDictionary, WeakSet

import torch

from smelt import _native
from smelt.base import locks
from smelt.device import chip_on, has_chips
from smelt.ir.table.records import Tensor
from smelt.runtime.cuda.memory import offer_spare, or_spare

ARENA_ALIGNMENT = 64
_FEW = 8  # programs with arenas as large as they need
_MOST_STREAMS = 32  # whose arenas are kept; PyTorch itself has 32 of a priority


class _Views(list[torch.Tensor]):
    """What one program sees of an arena, in the order its source counts them."""

    arena: "_Arena"


class _Viewer:
    """Stands for a program that sees arenas, as long as there is one: sizes come and go, and programs with them."""

    __slots__ = ("__weakref__",)


class SharedViews:
    """What several programs see alike of an arena; None where each sees it another way."""

    __slots__ = ("__weakref__", "is_all", "views")

    def __init__(self, views: Sequence[Tensor | None]) -> None:
        self.views = views
        self.is_all = None not in views


class _Arena:
    """One block of memory a device, what each program sees of it, and those it is among while it is free."""

    def __init__(self, size: int, pool: "list[_Arena]") -> None:
        self.size = size
        self.pool = pool
        self.blocks: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}
        self.views: WeakKeyDictionary[_Viewer | SharedViews, _Views] = WeakKeyDictionary()
        self.shared: WeakKeyDictionary[SharedViews, list[torch.Tensor | None]] = WeakKeyDictionary()

    def see(self, views: Sequence[Tensor], shared: SharedViews | None = None) -> _Views:
        tensors = _Views()
        tensors.arena = self
        if shared is None:
            tensors += map(self._seen, views)
            return tensors
        alike = self.shared.get(shared)
        if alike is None:
            alike = self.shared[shared] = [None if view is None else self._seen(view) for view in shared.views]
        tensors += [self._seen(view) if tensor is None else tensor for view, tensor in zip(views, alike, strict=True)]
        return tensors

    def _seen(self, view: Tensor) -> torch.Tensor:
        typed = self._block(view.device, view.dtype)
        shape, stride, offset = view.layout
        begin = typed.storage_offset() + view.arena_offset // view.dtype.itemsize  # a multiple of ARENA_ALIGNMENT
        return typed.as_strided(shape, stride, begin + offset)

    def _block(self, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """All of the memory on a device, as elements of a dtype."""
        typed = self.blocks.get((device, dtype))
        if typed is None:
            block = self.blocks.get((device, torch.uint8))
            if block is None:
                block = self.blocks[device, torch.uint8] = _aligned_block(self.size, device)
            whole = self.size // dtype.itemsize * dtype.itemsize
            typed = self.blocks[device, dtype] = block[:whole].view(dtype)
        return typed


_all: "WeakSet[Arenas]" = WeakSet()
_all_lock = locks.lock()


class Arenas:
    """Planned memory of programs that run in turn, as the halves of a training step do: they use the same blocks."""

    def __init__(self) -> None:
        self.size = 0
        self.free: list[_Arena] = []
        self.by_streams: dict[tuple[int, ...], list[_Arena]] = {}  # free ones of programs on GPUs
        self.programs = 0
        with _native.Held(_all_lock):
            _all.add(self)

    def acquirer(
        self,
        needed: int,
        devices: Iterable[torch.device],
        views: Callable[[], Sequence[Tensor]],
        shared: SharedViews | None = None,
    ) -> Callable[[], _Views]:
        """A function that acquires an arena as a program sees it: one that is free, or a new one. The program needs so
        many bytes on each of the devices; what it sees of them is asked for when it first runs."""
        viewer = shared if shared is not None and shared.is_all else _Viewer()
        self.programs += 1
        if needed > self.size:  # many programs are one for many sizes, each perhaps a little larger than the last
            self.size = needed if self.programs <= _FEW else max(needed, self.size * 5 // 4)

        def acquire(pool: list[_Arena]) -> _Views:
            try:
                arena = pool.pop()
            except IndexError:
                arena = _Arena(self.size, pool)
            if arena.size < needed:
                arena = _Arena(self.size, pool)  # made before a program with more needs joined; it is dropped
            seen = arena.views.get(viewer)
            if seen is None:
                seen = arena.views[viewer] = arena.see(views(), shared)
            return seen

        gpus = _gpus_among(devices)
        if gpus:
            return lambda: acquire(self._of_streams(gpus))
        return functools.partial(acquire, self.free)

    def release(self, views: _Views) -> None:
        views.arena.pool.append(views.arena)

    def _of_streams(self, gpus: tuple[int, ...]) -> list[_Arena]:
        """The free arenas of the streams that are current on these GPUs."""
        if torch.cuda.is_current_stream_capturing():
            return []  # none is free, and what is made goes with the list
        streams = tuple([number for gpu in gpus for number in (gpu, _current_stream(gpu))])
        pool = self.by_streams.get(streams)
        if pool is None:
            if len(self.by_streams) >= _MOST_STREAMS:
                del self.by_streams[next(iter(self.by_streams))]
            pool = self.by_streams.setdefault(streams, [])
        return pool


def _let_go() -> bool:
    """Of the free arenas of programs on GPUs: whether there were any."""
    with _native.Held(_all_lock):
        every = list(_all)
    pools = [pool for arenas in every for pool in list(arenas.by_streams.values()) if pool]
    for pool in pools:
        pool.clear()
    return bool(pools)


offer_spare(_let_go)


def _gpus_among(devices: Iterable[torch.device]) -> tuple[int, ...]:
    """The numbers of GPUs, -1 for the current one."""
    return tuple(sorted(-1 if each.index is None else each.index for each in devices if each.type == "cuda"))


def _current_stream(gpu: int) -> int:
    stream: int = torch._C._cuda_getCurrentRawStream(torch.cuda.current_device() if gpu < 0 else gpu)
    return stream


def _aligned_block(size: int, device: torch.device) -> torch.Tensor:
    block = or_spare(lambda: torch.empty(size + ARENA_ALIGNMENT, dtype=torch.uint8, device=device))
    if has_chips() and chip_on(device.type) is not None:
        return block  # whose memory begins at such an address; PyTorch knows none
    skip = -block.data_ptr() % ARENA_ALIGNMENT
    return block[skip : skip + size]
