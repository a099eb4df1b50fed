"""A captured backward as data: parts that are graphs, and between them what must happen in Python, in order.

    Graph(inputs=(0, 3), outputs=(7, 8))    mm, call_hook, mul …: a torch-level graph from some slots to others
    AccumulateGrads(leaf=4, slot=7)                 add the gradient in slot 7 to the `.grad` of the leaf of node 4
    CallNode(node=2, slots=(8,), …)         a node that is left whole: call it

Slots are numbered. The first hold what a backward starts from: the gradients of the roots, what C++ nodes saved, what
compiled graphs saved. Each step fills more of them.
"""

from smelt.base.fast_dataclass import dataclass
from smelt.ir.graph import Traced
from smelt.ir.tensorspec import TensorSpec
from smelt.symbolic.shapes import contiguous_stride, is_dense


@dataclass(frozen=True, slots=True)
class HookAt:
    """A Python function among the hooks of a node: which kind, which of the node's dicts, which function in it."""

    node: int
    kind: str
    place: int
    number: int


@dataclass(frozen=True, slots=True)
class Graph:
    """A torch-level graph. Its inputs are slots, or hooks that it calls."""

    traced: Traced
    inputs: tuple[int | HookAt, ...]
    outputs: tuple[int, ...]

    @property
    def calls_hooks(self) -> bool:
        return any(isinstance(source, HookAt) for source in self.inputs)


@dataclass(frozen=True, slots=True)
class AccumulateGrads:
    """Gradients arrive at leaves, in this order: (number of the node, slot)."""

    gradients: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class AccumulateByEngine:
    """A gradient arrives at a leaf that C++ code watches: PyTorch does all there is to do."""

    node: int
    slot: int


@dataclass(frozen=True, slots=True)
class CallLeafHooks:
    """What is called once a leaf has its gradient."""

    hooks: tuple[HookAt, ...]
    node: int


@dataclass(frozen=True, slots=True)
class HooksByEngine:
    """Hooks on the results of a node that Python cannot see: PyTorch calls them. (input, slot before, slot after)."""

    node: int
    gradients: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class CallNode:
    """A node that is left whole. Per edge: the slot that its gradient goes to and its layout, or None for neither."""

    node: int
    name: str
    python: bool
    gradients: tuple[int | None, ...]
    results: tuple[tuple[int, TensorSpec] | None, ...]


Step = Graph | AccumulateGrads | AccumulateByEngine | CallLeafHooks | HooksByEngine | CallNode


@dataclass(frozen=True, slots=True)
class Backward:
    """All of a backward. `arrived`: per compiled graph (by node) which of its results got gradients, a bit each."""

    steps: tuple[Step, ...]
    slots: int
    wanted: tuple[int | None, ...]  # the slots of the gradients that were asked for
    arrived: tuple[tuple[int, int], ...]
    ran: tuple[int, ...] | None = None  # the nodes that run, if not all do

    @property
    def hooks(self) -> tuple[HookAt, ...]:
        """All hooks that are called by name."""
        hooks: list[HookAt] = []
        for step in self.steps:
            if isinstance(step, Graph):
                hooks += [source for source in step.inputs if isinstance(source, HookAt)]
            elif isinstance(step, CallLeafHooks):
                hooks += step.hooks
        return tuple(hooks)

    @property
    def runs_python(self) -> bool:
        """Whether code runs that may ask which backward it is part of."""
        return any(not isinstance(step, Graph | AccumulateGrads) or _calls(step) for step in self.steps)


def _calls(step: Step) -> bool:
    return isinstance(step, Graph) and step.calls_hooks


def dense_spec(spec: TensorSpec) -> TensorSpec:
    """The layout of a gradient once Python code had it: as before if each element had a place of its own."""
    stride = spec.stride if is_dense(spec.shape, spec.stride) else contiguous_stride(spec.shape)
    return TensorSpec(spec.shape, stride, spec.dtype, spec.device)
