"""Records calls on lazy tensors: each becomes a step of the tree, and its results tensors without numbers.

    x + 1   →   encode the arguments  →  the step that follows for them, made on its first time  →  new tensors

One recording is under way at a time, whatever thread calls: a backward runs on a thread of autograd's engine, and
what it does comes after what the program did before it. `Runs` runs a recording when a value is needed, and then a
new one begins."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from smelt import _native
from smelt.dispatch import tensors
from smelt.dispatch.signatures import Kind, Signature, recorded_operator, signature
from smelt.dispatch.tensors import Layout, layout_of, memory_of
from smelt.lazy import lines
from smelt.lazy.describe import Undescribed, describe_call
from smelt.lazy.memory import Memory, owned
from smelt.lazy.steps import REFS, Fresh, Operand, Step, View
from smelt.meta.devices import result_device

aten = torch.ops.aten


MOST_STEPS = 200_000
"""So many steps are remembered; then the tree begins anew."""


class Recorder(_native.LazyRecorder):
    """The calls of all threads, in order. `lock` is held while one is recorded or run.

    A call that was recorded before is looked up in C (`csrc/lazy/`), which asks here for the rest: steps that are new,
    memories that enter a recording for the first time, and tensors that cannot be read from memory."""

    def __init__(self, name: str, real_device: torch.device) -> None:
        self.device_type = name
        self.real_device = real_device
        self.root = Step(None)
        self._others: dict[torch.dtype, Step] = {}  # roots under other default dtypes, which decide about results
        self._serial = 0
        self._steps = 0
        self.connect(
            now=_native.Recording(0, self.root),
            refs=REFS,
            lock=_native.RecordingLock(),
            tensor_class=torch.Tensor,
            memory_class=Memory,
            create=tensors.create_function(),
            declined=(Foreign, Undescribed),
        )

    def forget(self) -> None:
        """Begin a new tree."""
        self.root = Step(None)
        self._others.clear()
        self.begin()

    def default_dtype_changed(self, before: torch.dtype, now: torch.dtype) -> None:
        """Go on in the tree of what is recorded under another default dtype. Nothing is recorded yet."""
        self._others[before] = self.root
        root = self._others.pop(now, None)
        self.root = Step(None) if root is None else root
        self.begin()

    def begin(self) -> _native.Recording:
        """A new recording; the one that was under way is returned."""
        ended = self.now
        if self._steps >= MOST_STEPS:  # ever new paths: those that recur are recorded and compiled anew
            self.root, self._steps = Step(None), 0
            self._others.clear()
        self._serial += 1
        self.now = _native.Recording(self._serial, self.root)
        return ended

    @property
    def device(self) -> torch.device:
        return torch.device(self.device_type, 0)

    def is_ours(self, value: object) -> bool:
        return isinstance(value, torch.Tensor) and value.device.type == self.device_type

    # Tensors.

    def new(self, layout: Layout, memory: Memory) -> torch.Tensor:
        shape, stride, _, dtype = layout
        return tensors.make(shape, stride, dtype, memory)

    def wrap(self, real: torch.Tensor) -> torch.Tensor:
        """A lazy tensor with these numbers, of which the caller gives up its own use."""
        memory = owned(real)
        return self.new(memory.layout, memory)

    def empty(self, layout: Layout) -> torch.Tensor:
        return self.new(layout, Memory(layout))

    def read(self, tensor: torch.Tensor) -> int:
        """The value of an argument; what a tensor says of itself, that it is conjugated or negated, is done to it."""
        value = self.value_of(tensor)
        if not (tensor.is_conj() or tensor.is_neg()):
            return value
        if tensor.is_conj():
            value = self._changed(aten.conj_physical.default, tensor, value)
        return self._changed(aten.neg.default, tensor, value) if tensor.is_neg() else value

    def _changed(self, operator: torch._ops.OpOverload, tensor: torch.Tensor, value: int) -> int:
        shape, _, _, dtype = layout_of(tensor)
        layout: Layout = (shape, torch.empty_like(tensors.on_meta(tensor)).stride(), 0, dtype)
        args = (REFS.upto(value),)
        return self._follow((operator, value), lambda: self._plain_step(operator, args, {}, layout)).first_value

    def value_of(self, tensor: torch.Tensor) -> int:
        """The number of a lazy tensor in the recording under way; tensors of earlier ones become inputs."""
        try:
            memory = memory_of(tensor)
        except AttributeError:
            raise Foreign from None
        if memory.serial != self.now.serial:
            self.enter(memory)
        layout = layout_of(tensor)
        number: int | None = memory.find(layout)
        return self._derived(memory, layout) if number is None else number

    def plain_dtype(self, tensor: torch.Tensor) -> torch.dtype | None:
        """The dtype of a tensor of the device that says nothing else of itself."""
        is_plain = self.is_ours(tensor) and tensor.layout is torch.strided
        return tensor.dtype if is_plain and not (tensor.is_conj() or tensor.is_neg()) else None

    def enter(self, memory: Memory) -> None:
        """Make memory of an earlier recording a value of this one."""
        if memory.lost is not None:
            raise memory.lost
        now = self.now
        if memory.real is None:
            shape, stride, _, dtype = memory.layout
            step = self._follow(
                (aten.empty_strided.default, memory.layout),
                lambda: self._plain_step(
                    aten.empty_strided.default, (list(shape), list(stride)), {"dtype": dtype}, memory.layout
                ),
            )
            now.watch(step.first_value, memory)
        else:
            step = self._follow((None, memory.layout), lambda: self._input_step(memory.layout))
            now.inputs.append(memory)
        memory.enter(now.serial, step.first_value)

    def _derived(self, memory: Memory, layout: Layout) -> int:
        """A view that nobody has recorded in this recording, made of the whole."""
        shape, stride, offset, dtype = layout
        base = memory.find(memory.layout)
        assert base is not None
        if dtype != memory.layout[3]:
            base = self._as_dtype(memory, dtype)
        args = (REFS.upto(base), list(shape), list(stride), offset)
        key = (aten.as_strided.default, base, layout)
        step = self._follow(key, lambda: self._plain_step(aten.as_strided.default, args, {}, layout))
        memory.see(layout, step.first_value)
        return step.first_value

    def _as_dtype(self, memory: Memory, dtype: torch.dtype) -> int:
        """The whole memory as one row of another dtype."""
        _, _, _, had = memory.layout
        length = tensors.bytes_of(*memory.layout) // had.itemsize
        flat: Layout = (torch.Size([length]), (1,), 0, had)
        base = memory.find(flat)
        if base is None:
            base = self._derived(memory, flat)
        row: Layout = (torch.Size([length * had.itemsize // dtype.itemsize]), (1,), 0, dtype)
        if (known := memory.find(row)) is not None:
            return known
        key = (aten.view.dtype, base, dtype)
        step = self._follow(key, lambda: self._plain_step(aten.view.dtype, (REFS.upto(base), dtype), {}, row))
        memory.see(row, step.first_value)
        return step.first_value

    def check_bits(self, known: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> None:
        """A tensor that says that it is conjugated or negated is not written here."""
        for name, value in (*zip(known.names, args, strict=False), *(kwargs or {}).items()):
            if name in known.written and isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg()):
                raise Undescribed(f"{known.operator} writes a conjugated or negated view")

    # Steps.

    def _follow(self, key: Any, make: Callable[[], Step]) -> Step:
        now = self.now
        step: Step | None = now.step.after.get(key)
        if step is None:
            step = make()
            now.step.after[key] = step
            self._steps += 1
        now.step = step
        return step

    def _plain_step(
        self, operator: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], layout: Layout
    ) -> Step:
        """A step of our own, with one result."""
        step = Step(self.now.step, operator)
        step.args, step.kwargs, step.line = args, kwargs, lines.here()
        step.results = (Fresh(layout, tensors.bytes_of(*layout)),)
        if signature(operator).takes_device:
            step.kwargs["device"] = self.real_device
        step.values += 1
        return step

    def _input_step(self, layout: Layout) -> Step:
        step = Step(self.now.step)
        step.layout = layout
        step.values += 1
        return step

    def record(self, known: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What a call returns, without its numbers. Raises `Undescribed` where that cannot be said."""
        return self.record_call(recorded_operator(known.operator), args, dict(kwargs))

    def make_step(
        self, known: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: tuple[Any, ...]
    ) -> Step:
        """The step of a call that was not recorded before."""
        results, form = describe_call(known, args, kwargs, self.real_device)
        step = Step(self.now.step, known.operator)
        template = _Template(step.numbers)
        step.args = tuple(template.of(kind, *each) for kind, *each in zip(known.kinds, args, key[1:], strict=False))
        encoded = key[2 + len(args) :: 2]
        named = zip(kwargs.items(), encoded, strict=True)
        step.kwargs = {name: template.of(known.by_name[name], value, code) for (name, value), code in named}
        if known.takes_device:
            step.kwargs["device"] = self.real_device
        step.results, step.form, step.line = results, form, lines.here()
        step.numbers = template.numbers
        step.values += sum(isinstance(result, Fresh | View) for result in results)
        self._steps += 1
        return step

    def new_view(self, layout: Layout, value: int, base: torch.Tensor) -> torch.Tensor:
        """A result that shares the memory of an argument."""
        shape, stride, offset, dtype = layout
        memory: Memory = memory_of(base)
        memory.see(layout, value)
        if dtype == base.dtype:
            return tensors.view(base, shape, stride, offset)
        seen: torch.Tensor = tensors.view_as(base, dtype, shape, stride, offset)
        return seen

    def brought(self, known: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The same arguments with copies of the host's tensors, which the program may change before this runs.

        Raises PyTorch's error for what does not go together.
        """
        result_device(known.operator, args, {name: value for name, value in kwargs.items() if name != "device"})

        def bring(value: Any) -> Any:
            if isinstance(value, tuple | list):
                return type(value)([bring(item) for item in value])
            if not isinstance(value, torch.Tensor) or value.device.type == self.device_type:
                return value
            return self.wrap(value.detach().to(self.real_device, copy=True))

        return tuple(map(bring, args)), {name: bring(value) for name, value in kwargs.items()}


class Foreign(Exception):
    """A tensor of another device among the arguments."""


class _Template:
    """Arguments as a step keeps them: values as the key has them, and numbers by their places."""

    def __init__(self, numbers: int) -> None:
        self.numbers = numbers

    def of(self, kind: Kind, value: Any, code: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return code
        if isinstance(value, tuple | list):
            return [self.of(kind, *each) for each in zip(value, code, strict=True)]
        is_number = isinstance(value, int | float | complex) and kind in (Kind.TENSOR, Kind.NUMBER)
        if not is_number:
            return value
        self.numbers += 1
        return Operand(self.numbers - 1)
