"""Which memory the tensors of a graph are views of, and which of them the graph writes.

x.data.add_(1)   →   written() has the input x, though its version tells nothing
"""

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceABC
from typing import Any

from torch import fx

from smelt.capture.model.values import Tensor, Value
from smelt.meta.fake_tensor import FakeTensor
from smelt.symbolic.shapes import may_overlap


class Memory:
    """The memory of the tensors of one graph. `by_fake` are these tensors, as far as they are known by then."""

    def __init__(self, by_fake: dict[int, Tensor]) -> None:
        self._by_fake = by_fake
        self._histories: dict[fx.Node, tuple[Any, Any]] = {}  # inputs as they came: fake tensor and `grad_fn`
        self.untracked: dict[int, Any] = {}  # fake tensors that are written without a count
        self._data: dict[int, tuple[Any, Tensor]] = {}  # what `.data` yielded, and of which tensor: also without
        self._written: dict[fx.Node, list[int]] = {}  # the fake tensors that a node writes, by their ids
        self._names: dict[int, set[fx.Node]] = {}  # the nodes that yield a fake tensor which is written

    def release(self) -> None:
        """Let go of the program's tensors."""
        self._data.clear()

    def add_input(self, node: fx.Node, fake: Any) -> None:
        """A fake tensor comes from outside."""
        self._histories[node] = (fake, fake.grad_fn)

    def add_data(self, fake: Any, tensor: Tensor) -> None:
        """A fake tensor is what `.data` of a tensor yields."""
        self._data[id(fake)] = (fake, tensor)

    def add_write(self, node: fx.Node, value: Tensor) -> None:
        """A node writes a tensor."""
        self._written.setdefault(node, []).append(id(value.fake))
        self._names.setdefault(id(value.fake), set()).update((value.node, node))

    def add_untracked_write(self, tensor: Any) -> None:
        """A tensor is written, of which its version will tell nothing."""
        whole = _base_of(tensor)
        self.untracked[id(whole)] = whole

    def written_through_data(self, written: list[Tensor]) -> list[Tensor]:
        """The tensors that are written by way of their `.data`, whose version tells nothing."""
        tensors = []
        for value in written:
            while (id(whole := _base_of(value.fake))) in self._data:
                value = self._data[id(whole)][1]
                self.add_untracked_write(value.fake)
                tensors.append(value)
        return tensors

    def nodes_of_written(self, fake: Any) -> Iterable[fx.Node]:
        """The nodes that yield a fake tensor, if it is written."""
        return self._names.get(id(fake), ())

    def written_by(self, node: fx.Node) -> set[fx.Node]:
        """The nodes that yield a tensor which this node writes."""
        return {each for fake in self._written.get(node, ()) for each in self._names.get(fake, ())}

    def written(self) -> set[fx.Node]:
        """Inputs that are written, by themselves or by a view."""
        inputs = self._histories.items()
        return {node for node, (fake, _) in inputs if fake._version or id(fake) in self.untracked}

    @property
    def writes_inputs(self) -> bool:
        """Whether a tensor from outside, or a view of one, is written."""
        by_views = (value.source is not None and value.fake._version > 0 for value in self._by_fake.values())
        return any(by_views) or bool(self.written())

    def mutated_with_grad(self) -> set[fx.Node]:
        """Inputs that are written with gradients: they have another history than they came with."""
        return {node for node, (fake, history) in self._histories.items() if fake.grad_fn is not history}

    def is_data(self, value: Value, of: Tensor) -> bool:
        """Whether a value is what `.data` of a tensor yielded."""
        known = self._data.get(id(value.fake)) if isinstance(value, Tensor) else None
        return known is not None and known[1].fake is of.fake

    def is_among(self, out: FakeTensor, read: Iterator[FakeTensor], pointwise: bool) -> bool:
        """Whether memory that a call is to write is among what it reads, or has elements that it shows more than once.
        Element by element, a tensor may be written in its own place."""
        if may_overlap(tuple(out.shape), out.stride()):
            return True
        memory = self._of(out)
        return any(self._of(each) is memory for each in read if not (pointwise and each is out))

    def is_shared(self, one: Tensor, other: Tensor) -> bool:
        """Whether two tensors are views of the same memory."""
        return self._of(one.fake) is self._of(other.fake)

    def is_of_input(self, tensor: Tensor) -> bool:
        """Whether a tensor is an input or a view of one."""
        whole = self._by_fake.get(id(self._of(tensor.fake)))
        return whole is None or whole.source is not None

    def shared_by(
        self, inputs: SequenceABC[fx.Node], outputs: SequenceABC[fx.Node]
    ) -> tuple[tuple[str, int] | None, ...]:
        """Of each output, the input or earlier output that it shares memory with."""
        bases = {value.node: id(self._of(value.fake)) for value in self._by_fake.values()}
        known = {bases[node]: ("input", place) for place, node in enumerate(inputs) if node in bases}
        places: list[tuple[str, int] | None] = []
        for place, node in enumerate(outputs):
            base = bases.get(node)
            places.append(None if base is None else known.get(base))
            if base is not None:
                known.setdefault(base, ("output", place))
        return tuple(places)

    def _of(self, fake: FakeTensor) -> Any:
        """The tensor that all views of one memory are views of, `.data` included."""
        whole = _base_of(fake)
        while id(whole) in self._data:
            whole = _base_of(self._data[id(whole)][1].fake)
        return whole


def _base_of(tensor: Any) -> Any:
    """What a tensor is a view of, or itself."""
    return tensor if tensor._base is None else tensor._base
