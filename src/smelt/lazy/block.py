"""`with smelt.lazy():` records what a program does with tensors of the host or of a GPU, which stay where they are.

    with smelt.lazy():
        y = (x + 1) * 2          recorded; y is a tensor of the CPU with memory that nothing is in yet
        print(y)                 runs
    y.numpy()                    at the end of the block everything has run

Each storage that takes part has a shadow on the lazy device: operators are called on shadows. The shadow of a tensor
from outside has the tensor's own memory, so that writes land there when they run. Shadows of results are computed
apart, and copied once somebody looks at memory itself (`numpy()`, `data_ptr()`) or the block ends.
"""

import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from smelt.dispatch import tensors
from smelt.dispatch.signatures import Signature, signature
from smelt.dispatch.tensors import layout_of, memory_of
from smelt.lazy import lines
from smelt.lazy.memory import Memory, view_of
from smelt.lazy.trials import Trial
from smelt.meta.devices import tensors_in
from smelt.meta.replaced_operators import replaced_operators

if TYPE_CHECKING:
    from smelt.lazy.owner import LazyOwner

aten = torch.ops.aten

# What only changes what a tensor says of itself: no number is read or written.
_PLAIN = frozenset(
    {
        *("t_", "transpose_", "squeeze_", "unsqueeze_", "as_strided_", "swapaxes_", "swapdims_", "detach_", "detach"),
        *("alias", "lift", "lift_fresh", "empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"),
        *("_version", "is_same_size", "_has_same_storage_numel", "is_pinned", "_is_zerotensor", "sym_size"),
        *("sym_stride", "sym_numel"),
        *("sym_storage_offset", "size", "stride", "storage_offset", "numel", "dim", "result_type"),
        *("_conj", "_neg_view", "_fw_primal", "_make_dual", "_unpack_dual", "is_contiguous", "sym_is_contiguous"),
    }
)

# What shares memory with its argument though its schema is silent about it.
_VIEWS = {
    aten._unsafe_view.default: aten.view.default,
    aten._reshape_alias.default: aten._reshape_alias.default,
    aten.unsafe_split.Tensor: aten.split.Tensor,
    aten.unsafe_split_with_sizes.default: aten.split_with_sizes.default,
}

# Functions of tensors that look at memory, or hand it to somebody who will.
_LOOKS = frozenset(
    {
        *(torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.tolist, torch.Tensor.data_ptr),
        *(torch.Tensor.untyped_storage, torch.Tensor.storage, torch.Tensor._typed_storage, torch.Tensor.__dlpack__),
        *(torch.Tensor.share_memory_, torch.Tensor.__deepcopy__, torch.Tensor.__reduce_ex__, torch.Tensor.pin_memory),
        *(torch.Tensor.__repr__, torch.Tensor.__format__),
    }
)
_COPIES = frozenset({torch.Tensor.tolist, torch.Tensor.__deepcopy__, torch.Tensor.__reduce_ex__})  # and keep nothing
_COPIES |= {torch.Tensor.__repr__, torch.Tensor.__format__}

# Functions in C++ that read the integers of tensors of the host without an operator.
_READ_INTEGERS = frozenset(
    {torch.tensor_split, torch.Tensor.tensor_split, torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu}
)

# Operators that do more than their schema says.
_AS_THEY_ARE = {
    aten._pack_padded_sequence.default: "reads lengths in memory",
    aten.mkldnn_rnn_layer.default: "keeps what a backward needs if gradients are enabled at the call",
}

# These read tensors in lists without an operator.
_MAKES = frozenset({torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor})


class Shadow:
    """The lazy tensor behind a storage of the host. It lives as long as the storage, which it does not hold."""

    def __init__(self, whole: torch.Tensor, storage: torch.UntypedStorage) -> None:
        self.whole = whole
        self._address: int = storage._cdata

    @property
    def memory(self) -> Memory:
        memory: Memory = memory_of(self.whole)
        return memory

    @property
    def storage(self) -> Any:
        """The storage, which is there: it holds this."""
        return torch.UntypedStorage._new_with_weak_ptr(self._address)


class LazyBlock:
    """The context that `smelt.lazy()` returns. One inside of another is part of it.

    Its modes are on while a round is recorded. Where recording does not pay (`lazy/trials.py`) they are taken off
    between two rounds: then the code runs as if there were no block."""

    def __init__(self, owner: "LazyOwner") -> None:
        self._owner = owner
        self._shadows: Shadows | None = None
        self._modes: tuple[Any, ...] = ()
        self._is_open = False

    def __enter__(self) -> None:
        if any(isinstance(mode, _Calls) for mode in _active()) or self._owner.open_block() is not None:
            return
        if replaced_operators():
            return  # graphs would call PyTorch's own operators
        self._entries, self._rounds = self._owner.trials_at(lines.here())
        if (self._entries.pays is False or self._rounds.pays is False) and not self._owner.runs.waits:
            return  # as if there were no block
        self._is_open, self._thread, self._steps = True, threading.get_ident(), 0
        self._owner.open_blocks.append(self)
        if self._owner.runs.waits or self._entries.records_next(self._owner.is_compiling):
            self._resume()
        self._depth = _depth(), bool(self._modes)
        self._entered = self._began = self._start()

    def __exit__(self, *error: Any) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._owner.open_blocks.remove(self)
        try:
            self._pause(error)
        finally:
            if self._steps < 2 and error[0] is None:
                self._end(self._entries, self._entered)

    def is_of_this_thread(self) -> bool:
        return self._thread == threading.get_ident()

    def end_step(self) -> None:
        """An optimizer has made its step, or `smelt.lazy.step()` was called: a round of the loop in this block."""
        self._steps += 1
        if self._steps > 1:
            self._end(self._rounds, self._began)
            self._switch()
        self._began = self._start()

    def _switch(self) -> None:
        if not self._can_switch():
            return
        records = self._owner.runs.waits or self._rounds.records_next(self._owner.is_compiling)
        if records and not self._modes:
            self._resume()
        elif not records and self._modes:
            self._pause((None, None, None))

    # Rounds.

    def _start(self) -> tuple[float, int, bool, bool]:
        return time.perf_counter(), self._owner.timeline.count, bool(self._modes), self._owner.is_compiling

    def _end(self, trial: Trial, start: tuple[float, int, bool, bool]) -> None:
        started, count, was_recorded, was_compiling = start
        took = time.perf_counter() - started
        timeline = self._owner.timeline
        runs = timeline.count - count
        if was_recorded and runs:
            trial.add_recorded(took, all(run.how == "cached" for run in list(timeline.runs)[-runs:]))
        elif not was_recorded and not was_compiling and not self._owner.is_compiling:
            trial.add_eager(took)

    # Modes.

    def _can_switch(self) -> bool:
        """Whether no other mode was entered since: they end in the order of their beginning."""
        depth, had_modes = self._depth
        return self.is_of_this_thread() and _depth() == depth + 2 * (bool(self._modes) - had_modes)

    def _resume(self) -> None:
        if self._shadows is None:
            self._shadows = Shadows(self._owner)
        self._modes = (_Looks(self._shadows), _Calls(self._shadows))
        self._owner.blocks.append(self._shadows)
        for mode in self._modes:
            mode.__enter__()  # type: ignore[no-untyped-call]

    def _pause(self, error: tuple[Any, ...]) -> None:
        modes, self._modes = self._modes, ()
        for mode in reversed(modes):
            mode.__exit__(*error)
        if modes:
            assert self._shadows is not None
            self._owner.blocks.remove(self._shadows)
            self._shadows.end()


def _depth() -> int:
    """How many modes are on, of functions and of operators. A block has one of each."""
    return int(torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack())


def _active() -> list[Any]:
    return [torch._C._get_dispatch_stack_at(place) for place in range(torch._C._len_torch_dispatch_stack())]


class _Looks(TorchFunctionMode):
    """What reads memory without an operator."""

    def __init__(self, shadows: "Shadows") -> None:
        super().__init__()
        self._shadows = shadows

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _LOOKS:
            self._shadows.settle(f"{function.__name__}() reads memory directly")
            if function not in _COPIES and isinstance(args[0], torch.Tensor) and args[0].layout is torch.strided:
                with torch._C.DisableTorchFunction():
                    _storage_of(args[0]).smelt_shared = True
        elif function in _MAKES and tensors_in((*args, *(kwargs or {}).values())):
            self._shadows.settle(f"{function.__name__}() reads tensors")
        elif function in _READ_INTEGERS and any(map(self._waits_as_integers, (*args, *(kwargs or {}).values()))):
            self._shadows.settle(f"{function.__name__}() reads integers in memory")
        return function(*args, **(kwargs or {}))

    def _waits_as_integers(self, value: Any) -> bool:
        if not isinstance(value, torch.Tensor) or value.is_floating_point():
            return False
        with torch._C.DisableTorchFunction():
            return self._shadows.has_shadow(value)


class _Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operators."""

    def __init__(self, shadows: "Shadows") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._shadows = shadows

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._shadows.call(operator, args, kwargs or {})


class Shadows:
    """Calls on tensors of the host, made on the lazy device."""

    def __init__(self, owner: "LazyOwner") -> None:
        self._owner = owner
        self._real = owner.real
        self._device = owner.real.device
        self._stream: Any = owner.real.program_stream()
        self._results: weakref.WeakSet[Shadow] = weakref.WeakSet()
        self._outside: dict[int, tuple[torch.Tensor, Any]] = {}  # of the recording `_serial`, by storage
        self._serial = -1

    def call(self, operator: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        with torch._C.DisableTorchFunction(), self._owner.recorder.lock:
            name = operator._schema.name.partition("::")[2]
            if name in _PLAIN and operator.namespace == "aten":
                return operator(*args, **kwargs)
            known = signature(operator)
            call = _ShadowedCall(self)
            involved = tensors_in((*args, *kwargs.values()))
            if not involved and not known.returns_tensors:
                return operator(*args, **kwargs)  # it has nothing to do with tensors
            if involved and all(self._real.is_elsewhere(tensor.device) for tensor in involved):
                return operator(*args, **kwargs)  # nothing that waits is there
            self._follow_stream()
            numbers = bool(involved) and not any(tensor.dim() for tensor in involved)
            if (known.draws(args, kwargs) or numbers) and not any(map(self.has_shadow, involved)):
                # Of what nothing that waits depends on. Random numbers are drawn as eager draws them, and single
                # numbers are quicker computed than recorded: an optimizer counts its steps so, and asks for them.
                return operator(*args, **kwargs)
            reason = self._why_not(known, args, kwargs)
            if reason is not None:
                self.settle(reason)
                return operator(*args, **kwargs)
            if known.is_view or operator in _VIEWS:
                _VIEWS.get(operator, operator)(*call.lazy(args), **call.lazy(kwargs))
                return operator(*args, **kwargs)
            named = dict(call.lazy(kwargs))
            if known.takes_device and (named.get("device") is not None or not call.pairs):
                named["device"] = self._owner.recorder.device
                named.pop("pin_memory", None)
            return call.returned(operator(*call.lazy(args), **named))

    def _follow_stream(self) -> None:
        """What was recorded on another stream of the program is there before anything comes on this one."""
        before, self._stream = self._stream, self._real.program_stream()
        if before != self._stream:
            with self._real.on(before):
                self.settle("the program goes to another stream")
            with self._real.working():  # this one waits as well
                pass

    def _why_not(self, known: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """Why a call is made on the tensors themselves."""
        operator = known.operator
        if not known.returns_tensors and operator is not aten._local_scalar_dense.default:
            return f"{operator} needs numbers"
        device = kwargs.get("device")
        if device is not None and self._real.is_elsewhere(torch.device(device)):
            return f"{operator} is asked for on {device}"
        if kwargs.get("layout") not in (None, torch.strided):
            return f"{operator} is asked for as {kwargs['layout']}"
        if "out" in known.written or operator._overloadname.endswith("out"):
            return f"{operator} is given memory to write"
        if operator in _AS_THEY_ARE:
            return f"{operator} {_AS_THEY_ARE[operator]}"
        if operator._schema.name in ("aten::resize_", "aten::set_", "aten::resize_as_", "aten::set_data"):
            return f"{operator} changes memory itself"
        for tensor in tensors_in((*args, *kwargs.values())):
            if type(tensor) not in _TYPES or tensor.layout is not torch.strided or tensor.is_quantized:
                return f"{operator} is given a {type(tensor).__name__} of layout {tensor.layout}"
            if self._real.is_elsewhere(tensor.device):
                return f"{operator} is given a tensor on {tensor.device}"
            if tensor.is_conj() or tensor.is_neg():
                return f"{operator} is given a conjugated or negated view"
            if _is_shared(_storage_of(tensor)) and known.written:
                return f"{operator} may write memory that is not PyTorch's alone"
        return None

    # Tensors.

    def has_shadow(self, tensor: torch.Tensor) -> bool:
        if tensor.layout is not torch.strided:
            return False
        storage = _storage_of(tensor)
        return hasattr(storage, "smelt_shadow") or (
            self._serial == self._owner.recorder.now.serial and storage._cdata in self._outside
        )

    def lazy_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """A lazy tensor over the shadow of a tensor's storage."""
        storage = _storage_of(tensor)
        shadow: Shadow | None = getattr(storage, "smelt_shadow", None)
        whole = shadow.whole if shadow is not None else self._entered(tensor, storage)
        shape, stride, offset, dtype = layout_of(tensor)
        if (shape, stride, offset, dtype) == layout_of(whole):
            return whole
        if dtype == whole.dtype:
            return tensors.view(whole, shape, stride, offset)
        lazy: torch.Tensor = tensors.view_as(whole, dtype, shape, stride, offset)
        return lazy

    def _entered(self, tensor: torch.Tensor, storage: Any) -> torch.Tensor:
        """The shadow of a tensor from outside, for as long as this recording lasts."""
        recorder = self._owner.recorder
        if self._serial != recorder.now.serial:
            self._outside, self._serial = {}, recorder.now.serial
        known = self._outside.get(storage._cdata)
        if known is not None:
            return known[0]
        is_whole = tensor.storage_offset() == 0 and tensors.bytes_of(*layout_of(tensor)) == storage.nbytes()
        with torch._C._InferenceMode(False), torch.no_grad():
            real = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            if is_whole and tensor.numel():
                real.set_(storage, 0, tensor.shape, tensor.stride())
            else:
                real.set_(storage, 0, (storage.nbytes() // tensor.dtype.itemsize,), (1,))
            if _is_shared(storage):  # others may write it before this runs
                return recorder.wrap(real.clone())
        whole = recorder.wrap(real)
        self._outside[storage._cdata] = (whole, storage)
        return whole

    def result(self, lazy: torch.Tensor) -> torch.Tensor:
        """A tensor of the host for a result; its memory is filled when somebody looks."""
        shape, stride, _, dtype = layout_of(lazy)
        host = torch.empty_strided(shape, stride, dtype=dtype, device=self._device)
        storage = _storage_of(host)
        whole = lazy
        if lazy.storage_offset() or tensors.bytes_of(*layout_of(lazy)) != storage.nbytes():
            whole = lazy.clone()
        storage.smelt_shadow = shadow = Shadow(whole, storage)
        self._results.add(shadow)
        return host

    # Memory.

    def settle(self, reason: str) -> None:
        """Run what is recorded, and have the numbers where tensors say that they are."""
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), self._owner.recorder.lock:
            try:
                self._owner.run(reason)
            finally:
                with self._real.working():
                    for shadow in list(self._results):
                        self._fill(shadow)

    def _fill(self, shadow: Shadow) -> None:
        memory, storage = shadow.memory, shadow.storage
        if memory.lost is not None or memory.serial == self._owner.recorder.now.serial:
            return
        shape, stride, _, dtype = layout_of(shadow.whole)
        with torch._C._InferenceMode(False), torch.no_grad():
            mine = torch.empty(0, dtype=dtype, device=self._device).set_(storage, 0, shape, stride)
            if memory.real is not None:
                mine.copy_(view_of(memory, layout_of(shadow.whole)))
        self._results.discard(shadow)
        del storage.smelt_shadow

    def end(self) -> None:
        """The block ends: nothing waits, and what could not be computed is no number."""
        try:
            self.settle("the end of a lazy block")
        finally:
            for shadow in list(self._results):
                shape, stride, _, dtype = layout_of(shadow.whole)
                storage = shadow.storage
                with torch._C._InferenceMode(False), torch.no_grad():
                    mine = torch.empty(0, dtype=dtype, device=self._device).set_(storage, 0, shape, stride)
                    mine.fill_(float("nan") if dtype.is_floating_point or dtype.is_complex else 0)
                del storage.smelt_shadow
            self._results.clear()
            self._outside = {}


_TYPES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class _ShadowedCall:
    """The arguments of one call on lazy tensors, and the way back."""

    def __init__(self, shadows: Shadows) -> None:
        self._shadows = shadows
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []  # lazy, of the host

    def lazy(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            lazy = self._shadows.lazy_of(value)
            self.pairs.append((lazy, value))
            return lazy
        if isinstance(value, tuple | list):
            return type(value)([self.lazy(item) for item in value])
        if isinstance(value, Mapping):
            return {name: self.lazy(item) for name, item in value.items()}
        return value

    def returned(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)([self.returned(item) for item in value])
        if not isinstance(value, torch.Tensor):
            return value
        for lazy, host in self.pairs:
            if lazy is value:
                return host
        storage = value.untyped_storage()
        for lazy, host in self.pairs:
            if lazy.untyped_storage()._cdata == storage._cdata and lazy.dtype == value.dtype:
                shape, stride, offset, _ = layout_of(value)
                return host.as_strided(shape, stride, offset)
        return self._shadows.result(value)


_storage_of: Callable[[torch.Tensor], Any] = torch._C.TensorBase.untyped_storage


def _is_shared(storage: Any) -> bool:
    """Whether somebody may read or write its memory without an operator: NumPy, another process."""
    return hasattr(storage, "smelt_shared") or not storage.resizable() or storage.is_shared()
