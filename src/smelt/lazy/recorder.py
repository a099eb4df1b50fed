"""Records calls on lazy tensors: each becomes a step of the tree, and its results tensors without numbers.

    x + 1   →   encode the arguments  →  the step that follows for them, made on its first time  →  new tensors

One recording is under way at a time, whatever thread calls: a backward runs on a thread of autograd's engine, and
what it does comes after what the program did before it. `Runs` runs a recording when a value is needed, and then a
new one begins."""

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from smelt.dispatch import tensors
from smelt.dispatch.tensors import Layout, layout_of, memory_of
from smelt.lazy import lines
from smelt.lazy.describe import Undescribed, describe_call
from smelt.lazy.memory import Memory, owned
from smelt.lazy.signatures import Kind, Signature, signature
from smelt.lazy.steps import REFS, Fresh, Operand, Step, View, at
from smelt.meta.devices import result_device

aten = torch.ops.aten


MOST_STEPS = 200_000
"""So many steps are remembered; then the tree begins anew."""


class Recording:
    """What was recorded since the last run: where the tree stands, and what is beside it."""

    def __init__(self, serial: int, root: Step) -> None:
        self.serial = serial
        self.step = root
        self.numbers: list[Any] = []
        self.inputs: list[Memory] = []
        self.memories: dict[int, weakref.ref[Memory]] = {}  # by the value that is all of it
        self.count = 0
        self.bytes = 0


class Recorder:
    """The calls of all threads, in order. `lock` is held while one is recorded or run."""

    def __init__(self, name: str, real_device: torch.device) -> None:
        self.device_type = name
        self.real_device = real_device
        self.lock = threading.RLock()
        self.root = Step(None)
        self._serial = 0
        self._steps = 0
        self.now = Recording(0, self.root)

    def forget(self) -> None:
        """Begin a new tree."""
        self.root = Step(None)
        self.begin()

    def begin(self) -> Recording:
        """A new recording; the one that was under way is returned."""
        ended = self.now
        if self._steps >= MOST_STEPS:  # ever new paths: those that recur are recorded and compiled anew
            self.root, self._steps = Step(None), 0
        self._serial += 1
        self.now = Recording(self._serial, self.root)
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
            self._enter(memory)
        layout: Any = (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype)
        found = memory.views.get(layout)
        return self._derived(memory, layout) if found is None else found

    def _enter(self, memory: Memory) -> None:
        if memory.lost is not None:
            raise memory.lost
        now = self.now
        if memory.is_empty:
            shape, stride, _, dtype = memory.layout
            step = self._follow(
                (aten.empty_strided.default, memory.layout),
                lambda: self._plain_step(
                    aten.empty_strided.default, (list(shape), list(stride)), {"dtype": dtype}, memory.layout
                ),
            )
            now.memories[step.first_value] = weakref.ref(memory)
        else:
            step = self._follow((None, memory.layout), lambda: self._input_step(memory.layout))
            now.inputs.append(memory)
        memory.serial = now.serial
        memory.views = {memory.layout: step.first_value}

    def _derived(self, memory: Memory, layout: Layout) -> int:
        """A view that nobody has recorded in this recording, made of the whole."""
        shape, stride, offset, dtype = layout
        base = memory.views[memory.layout]
        if dtype != memory.layout[3]:
            base = self._as_dtype(memory, dtype)
        args = (REFS.upto(base), list(shape), list(stride), offset)
        key = (aten.as_strided.default, base, layout)
        step = self._follow(key, lambda: self._plain_step(aten.as_strided.default, args, {}, layout))
        memory.views[layout] = step.first_value
        return step.first_value

    def _as_dtype(self, memory: Memory, dtype: torch.dtype) -> int:
        """The whole memory as one row of another dtype."""
        _, _, _, had = memory.layout
        length = tensors.bytes_of(*memory.layout) // had.itemsize
        flat: Layout = (torch.Size([length]), (1,), 0, had)
        base = memory.views.get(flat)
        if base is None:
            base = self._derived(memory, flat)
        row: Layout = (torch.Size([length * had.itemsize // dtype.itemsize]), (1,), 0, dtype)
        if (known := memory.views.get(row)) is not None:
            return known
        key = (aten.view.dtype, base, dtype)
        step = self._follow(key, lambda: self._plain_step(aten.view.dtype, (REFS.upto(base), dtype), {}, row))
        memory.views[row] = step.first_value
        return step.first_value

    # Steps.

    def _follow(self, key: Any, make: Callable[[], Step]) -> Step:
        now = self.now
        step = now.step.after.get(key)
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
        now = self.now
        before = len(now.numbers)
        value_of = self.value_of if known.is_view else self.read
        try:
            if known.written:
                _check_bits(known, args, kwargs)
            key: list[Any] = [known.operator]
            for kind, value in zip(known.kinds, args, strict=False):
                is_tensor = kind is Kind.TENSOR and isinstance(value, torch.Tensor)
                key.append(REFS.upto(value_of(value)) if is_tensor else self._encoded(kind, value, value_of))
            for name, value in kwargs.items():
                key.append(name)
                key.append(self._encoded(known.by_name[name], value, value_of))
            frozen = tuple(key)
            step = now.step.after.get(frozen)
            if step is None:
                step = self._step(known, args, kwargs, frozen)
                now.step.after[frozen] = step
                self._steps += 1
        except BaseException:
            del now.numbers[before:]
            raise
        now.step = step
        now.count += 1
        return self._made(step, args, kwargs)

    def _encoded(self, kind: Kind, value: Any, value_of: Callable[[torch.Tensor], int]) -> Any:
        if kind is Kind.TENSOR:
            if isinstance(value, torch.Tensor):
                return REFS.upto(value_of(value))
            if isinstance(value, tuple | list):
                return tuple([self._encoded(kind, item, value_of) for item in value])
            return None if value is None else self._number(value)
        if kind is Kind.NUMBER:
            if isinstance(value, tuple | list):
                return tuple([self._number(item) for item in value])
            return None if value is None else self._number(value)
        if isinstance(value, list | tuple):
            return tuple([_literal(item) for item in value])
        return None if kind is Kind.DEVICE else _literal(value)

    def _number(self, value: Any) -> type:
        self.now.numbers.append(value)
        return type(value)

    def _step(self, known: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: tuple[Any, ...]) -> Step:
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
        return step

    def _made(self, step: Step, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The tensors that a step returns to the program."""
        value = step.first_value
        if step.form is None and len(step.results) == 1 and isinstance(step.results[0], Fresh):
            return self._fresh(step.results[0], value)
        found: list[Any] = []
        for result in step.results:
            if isinstance(result, Fresh):
                found.append(self._fresh(result, value))
                value += 1
            elif isinstance(result, View):
                found.append(self._view(result, value, at(result.path, args, dict(kwargs))))
                value += 1
            else:
                found.append(None if result is None else at(result.path, args, dict(kwargs)))
        if step.form is None:
            return found[0] if found else None
        return step.form(found)

    def _fresh(self, result: Fresh, value: int) -> torch.Tensor:
        now, layout = self.now, result.layout
        memory = Memory(layout)
        memory.serial = now.serial
        memory.views = {layout: value}
        now.memories[value] = weakref.ref(memory)
        now.bytes += result.bytes
        shape, stride, _, dtype = layout
        return tensors.make(shape, stride, dtype, memory, result.bytes)

    def _view(self, result: View, value: int, base: torch.Tensor) -> torch.Tensor:
        shape, stride, offset, dtype = result.layout
        memory: Memory = memory_of(base)
        memory.views.setdefault(result.layout, value)
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


def _check_bits(known: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """A tensor that says that it is conjugated or negated is not written here."""
    for name, value in (*zip(known.names, args, strict=False), *kwargs.items()):
        if name in known.written and isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg()):
            raise Undescribed(f"{known.operator} writes a conjugated or negated view")


def _literal(value: Any) -> Any:
    """Tells 0.0 from -0.0, finds nan again, and tells 1 from True."""
    return (float, repr(value)) if type(value) is float else (value if type(value) is not bool else (bool, value))
