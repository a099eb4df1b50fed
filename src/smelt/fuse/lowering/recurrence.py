"""All steps of a direction of a recurrent layer as one kernel, and their gradients as another.

    recurrent_steps(gates, w, None, h, c, LSTM)
    →  rows(b) · loop: h and c to scratch · steps(t): p = contract h, w for each gate · gates · y, h, c · loop: last c

Rows of the batch are independent of each other, so threads share them and never wait. Operands are read in place. In
the gradients the state is those of the gates after a step: multiplied with the weight they are added to the gradient
of the output before it.
"""

from collections.abc import Callable, Sequence

import torch
from torch import fx

from smelt.base.fast_dataclass import dataclass
from smelt.device.host_library import on_host
from smelt.fuse.lowering.values import FusionValue, Ref
from smelt.ir.kernel import (
    Axis,
    Buffer,
    Compute,
    Const,
    Contract,
    Factor,
    Index,
    Instruction,
    Kernel,
    Load,
    Role,
    Stage,
    Store,
)
from smelt.ir.nodes.recurrent_modes import GATES, GRU, LSTM, RNN_TANH
from smelt.ir.tensorspec import TensorSpec, tensor_spec
from smelt.symbolic.shapes import Size, span

_FORWARD, _BACKWARD = "smelt::recurrent_steps", "smelt::recurrent_steps_backward"
_TENSORS = {
    _FORWARD: ("gates", "weight", "bias", "h", "c"),
    _BACKWARD: ("grad", "grad_c", "weight", "output", "reserve"),
}
_RESULTS = {_FORWARD: ("y", "last", "kept"), _BACKWARD: ("of_gates", "of_state", "rest")}


@dataclass(frozen=True, slots=True)
class RecurrenceCall:
    """A kernel for a call, and the values that it reads, in the order of its inputs."""

    kernel: Kernel
    sources: tuple[FusionValue, ...]


def is_recurrence_call(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name in _TENSORS


def read_recurrence(
    node: fx.Node, ref_of: Callable[[fx.Node], Ref], results: Sequence[tuple[int, TensorSpec]]
) -> RecurrenceCall | str:
    """Return the kernel that computes the used `results` of a call, or why it has no kernel (a phrase after "it")."""
    assert isinstance(node.target, torch._ops.OpOverload)
    name = node.target._schema.name
    operands = dict(zip(_TENSORS[name], node.args, strict=False))
    refs = {each: ref_of(value) for each, value in operands.items() if isinstance(value, fx.Node)}
    *_, mode, reverse = node.args
    weight = operands["weight"]
    assert isinstance(weight, fx.Node) and isinstance(mode, int) and isinstance(reverse, bool)
    spec = tensor_spec(weight)
    if not on_host(spec.device) or spec.dtype not in (torch.float32, torch.float64):
        return "is computed step by step on such a device"
    if not results or not all(type(size) is int for size in spec.shape):
        return "is not asked for anything, or is of no certain width"
    steps_first = refs["gates" if name == _FORWARD else "grad"].layout.shape
    body = _Body(mode, refs, spec, (steps_first[0], steps_first[1]), reverse is (name == _FORWARD))
    if name == _FORWARD:
        return body.forward(results)
    return body.backward(results)


class _Body:
    """The stages of a kernel being written."""

    def __init__(
        self, mode: int, refs: dict[str, Ref], weight: TensorSpec, extents: tuple[Size, Size], downwards: bool
    ) -> None:
        self.mode, self.refs, self.dtype = mode, refs, weight.dtype
        self.width, self.gates = weight.shape[1], GATES[mode]
        self.steps, self.rows, self.downwards = *extents, downwards
        self.names: dict[FusionValue, str] = {}
        for name, ref in refs.items():
            self.names.setdefault(ref.value, name)
        self.body: list[Instruction] = []
        self.results: dict[str, TensorSpec] = {}
        self.count = 0

    # Instructions.

    def op(self, name: str, *args: str) -> str:
        self.body.append(Compute(out := self._fresh(), name, args, self.dtype))
        return out

    def _fresh(self) -> str:
        self.count += 1
        return f"v{self.count - 1}"

    def number(self, value: float) -> str:
        self.body.append(Const(out := self._fresh(), value, self.dtype))
        return out

    def load(self, name: str, part: int = 0) -> str:
        """An operand at this point, or a part of it as wide as the state."""
        ref = self.refs[name]
        return self._load(self.names[ref.value], self._index(ref.layout.stride, ref.layout.offset, part))

    def scratch(self, name: str, part: int = 0) -> str:
        return self._load(name, self._index((1,), 0, part))

    def _load(self, buffer: str, index: Index) -> str:
        self.body.append(Load(out := self._fresh(), buffer, index))
        return out

    def keep(self, name: str, value: str, part: int = 0) -> None:
        self.body.append(Store(name, self._index((1,), 0, part), value))

    def give(self, name: str, value: str, part: int = 0) -> None:
        """Store a part of a result, if it is used."""
        if name in self.results:
            self.body.append(Store(name, self._index(self.results[name].stride, 0, part), value))

    def gates_of(self, state: str) -> list[str]:
        """The state before this step by the rows of the weight: what it brings to each gate."""
        down, across = self.refs["weight"].layout.stride
        return [self._product(state, self.width, part * self.width * down, down, across) for part in range(self.gates)]

    def state_of(self, gates: str) -> str:
        """The gradients of the gates after this step by the columns of the weight: that of the state."""
        down, across = self.refs["weight"].layout.stride
        return self._product(gates, self.gates * self.width, 0, across, down)

    def _product(self, state: str, depth: int, offset: Size, col: Size, step: Size) -> str:
        ref, along = self.refs["weight"], (Axis("k", depth),)
        right = Factor(self.names[ref.value], _index(ref.layout.offset + offset, j=col, k=step))
        self.body.append(Contract(out := self._fresh(), along, Factor(state, _index(0, k=1)), right, self.dtype))
        return out

    def _index(self, stride: Sequence[Size], offset: Size, part: int) -> Index:
        """A point of a tensor of steps, rows and columns, or of the last of those."""
        steps, rows, cols = (0, 0, *stride)[-3:]
        if self.downwards and steps:
            offset, steps = offset + (self.steps - 1) * steps, -steps
        return _index(offset + part * self.width * cols, b=rows, t=steps, j=cols)

    # Kernels.

    def _stage(self, steps: bool = False) -> Stage:
        body, self.body = tuple(self.body), []
        return Stage(True, body, Axis("t", self.steps) if steps else None)

    def call(self, name: str, stages: Sequence[Stage], scratch: dict[str, int]) -> RecurrenceCall:
        taken = {i.buffer for stage in stages for i in stage.body if isinstance(i, Load)} | {
            factor.buffer for stage in stages for i in stage.body if isinstance(i, Contract) for factor in i.factors
        }
        sources = {value: each for value, each in self.names.items() if each in taken}
        inputs = [
            Buffer(each, value.spec.dtype, span(value.spec.shape, value.spec.stride), Role.INPUT)
            for value, each in sources.items()
        ]
        outputs = [
            Buffer(each, spec.dtype, span(spec.shape, spec.stride), Role.OUTPUT) for each, spec in self.results.items()
        ]
        kept = [Buffer(each, self.dtype, count * self.width, Role.SCRATCH) for each, count in scratch.items()]
        axes = (Axis("b", self.rows),), (Axis("j", self.width),)
        return RecurrenceCall(Kernel(name, *axes, (*inputs, *outputs, *kept), tuple(stages)), tuple(sources))

    def forward(self, results: Sequence[tuple[int, TensorSpec]]) -> RecurrenceCall:
        self.results = {_RESULTS[_FORWARD][number]: spec for number, spec in results if 0 not in spec.shape}
        states = ("h", "c") if self.mode == LSTM else ("h",)
        for name in states:
            self.keep(f"{name}_before", self.load(name))
        stages = [self._stage()]
        h = self._cell()
        self.give("y", h)
        self.keep("h_before", h)
        stages.append(self._stage(steps=True))
        if "last" in self.results:
            self.give("last", self.scratch("c_before"))
            stages.append(self._stage())
        return self.call("recurrent", stages, {f"{name}_before": 1 for name in states})

    def _cell(self) -> str:
        """The new hidden state."""
        of_input = [self.load("gates", part) for part in range(self.gates)]
        of_state = self.gates_of("h_before")
        if "bias" in self.refs:
            biases = [self.load("bias", part) for part in range(self.gates)]
            of_state = [self.op("add", each, bias) for each, bias in zip(of_state, biases, strict=True)]
        if self.mode == GRU:
            return self._gru(of_input, of_state)
        totals = [self.op("add", one, other) for one, other in zip(of_input, of_state, strict=True)]
        before = self.scratch("h_before") if "kept" in self.results else ""
        if self.mode != LSTM:
            self.give("kept", before)
            return self.op("tanh", totals[0]) if self.mode == RNN_TANH else self._relu(totals[0])
        i, f, g, o = (self.op("tanh" if place == 2 else "sigmoid", each) for place, each in enumerate(totals))
        c = self.scratch("c_before")
        for part, value in enumerate((i, f, g, o, c, before)):
            self.give("kept", value, part)
        c = self.op("add", self.op("mul", f, c), self.op("mul", i, g))
        self.keep("c_before", c)
        return self.op("mul", o, self.op("tanh", c))

    def _gru(self, of_input: list[str], of_state: list[str]) -> str:
        r, z = (self.op("sigmoid", self.op("add", of_input[part], of_state[part])) for part in range(2))
        n = self.op("tanh", self.op("add", of_input[2], self.op("mul", r, of_state[2])))
        before = self.scratch("h_before")
        for part, value in enumerate((r, z, n, of_state[2], before)):
            self.give("kept", value, part)
        return self.op("add", self.op("mul", self.op("sub", before, n), z), n)

    def _relu(self, value: str) -> str:
        return self.op("maximum", value, self.number(0.0))

    def backward(self, results: Sequence[tuple[int, TensorSpec]]) -> RecurrenceCall:
        self.results = {_RESULTS[_BACKWARD][number]: spec for number, spec in results if 0 not in spec.shape}
        nothing = self.number(0.0)
        for part in range(self.gates):
            self.keep("after", nothing, part)
        rest = self.mode in (LSTM, GRU)
        if rest:
            self.keep("rest_after", self.load("grad_c") if "grad_c" in self.refs else nothing)
        stages = [self._stage()]
        dh = self.op("add", self.load("grad"), self.state_of("after"))
        of_gates, of_state = self._gradients(dh)
        for part, (one, other) in enumerate(zip(of_gates, of_state, strict=True)):
            self.give("of_gates", one, part)
            self.give("of_state", other, part)
            self.keep("after", other, part)
        stages.append(self._stage(steps=True))
        if "rest" in self.results:
            self.give("rest", self.scratch("rest_after") if rest else self.number(0.0))
            stages.append(self._stage())
        scratch = {"after": self.gates} | ({"rest_after": 1} if rest else {})
        return self.call("recurrent_gradients", stages, scratch)

    def _gradients(self, dh: str) -> tuple[list[str], list[str]]:
        """Those of what the input brings to the gates, and of what the state brings."""
        one = self.number(1.0)
        op = self.op

        def slope(value: str) -> str:
            """Of a sigmoid."""
            return op("mul", value, op("sub", one, value))

        def flat(value: str) -> str:
            """The slope of a tanh."""
            return op("sub", one, op("mul", value, value))

        if self.mode == LSTM:
            i, f, g, o, c = (self.load("reserve", part) for part in range(5))
            shown = op("tanh", op("add", op("mul", f, c), op("mul", i, g)))
            rest = op("add", self.scratch("rest_after"), op("mul", op("mul", dh, o), flat(shown)))
            self.keep("rest_after", op("mul", rest, f))
            gates = [
                op("mul", op("mul", rest, g), slope(i)),
                op("mul", op("mul", rest, c), slope(f)),
                op("mul", op("mul", rest, i), flat(g)),
                op("mul", op("mul", dh, shown), slope(o)),
            ]
            return gates, gates
        if self.mode == GRU:
            r, z, n, of_n, h = (self.load("reserve", part) for part in range(5))
            dh = op("add", dh, self.scratch("rest_after"))
            self.keep("rest_after", op("mul", dh, z))
            dn = op("mul", op("mul", dh, op("sub", one, z)), flat(n))
            dz = op("mul", op("mul", dh, op("sub", h, n)), slope(z))
            dr = op("mul", op("mul", dn, of_n), slope(r))
            return [dr, dz, dn], [dr, dz, op("mul", dn, r)]
        y = self.load("output")
        if self.mode == RNN_TANH:
            gates = [op("mul", dh, flat(y))]
        else:
            zero = self.number(0.0)
            self.body.append(Compute(is_open := self._fresh(), "gt", (y, zero), torch.bool))
            gates = [op("where", is_open, dh, zero)]
        return gates, gates


def _index(offset: Size, **steps: Size) -> Index:
    return Index(tuple((name, step) for name, step in steps.items() if step), offset)
