"""The inputs of a captured graph: one for each tensor, in a fixed order, without those that nobody uses."""

from typing import Any

from torch import fx

from smelt.capture.interpreter.externals import Externals, guard_tensor_identity, is_gradient, may_guard_identity
from smelt.capture.model.breaks import SkipFrame
from smelt.capture.model.values import Tensor
from smelt.capture.replay.plan import Preallocated, have_distinct_bases
from smelt.capture.tape.tape import Tape, metadata_changed
from smelt.ir.tensorspec import tensor_spec


class GraphInputs:
    """The inputs of one graph."""

    def __init__(self, externals: Externals, tape: Tape) -> None:
        self._externals, self._tape = externals, tape
        self.joined: dict[fx.Node, fx.Node] = {}  # inputs that turned out to be another
        self.preallocated: dict[fx.Node, Preallocated] = {}  # inputs that are made before the graph runs

    def preallocate(self, value: Tensor) -> int | None:
        """The number of a tensor among those that are made before the graph runs; None for one that cannot be."""
        call = self._tape.preallocate(value)
        if call is None:
            return None
        node, function, args, kwargs = call

        def collected(argument: Any) -> Any:
            return self._tape.inputs[argument].collect() if isinstance(argument, fx.Node) else argument

        named = {name: collected(argument) for name, argument in kwargs.items()}
        self.preallocated[node] = Preallocated(function, tuple(map(collected, args)), named)
        return len(self.preallocated) - 1

    def drop_unused(self) -> None:
        """Erase inputs that nobody uses; the others are collected."""
        for node, source in list(self._tape.inputs.items()):
            if node.users:
                source.collect()
            else:
                self._tape.graph.erase_node(node)
                del self._tape.inputs[node]

    def join(self) -> None:
        """One input for a tensor that was met in several places, where it matters that it is one: it is written, or its
        gradient is taken. Other inputs that gradients may flow to are guarded to be distinct."""
        grad_targets = self._externals.grad_targets
        for places in self._tape.input_aliases():
            (first, value), *others = places
            values = [each for _, each in places]
            written = any(each.fake._version for each in values) and all(map(may_guard_identity, values))
            written = written or self._externals.explores  # stand-ins are the same wherever they are the same
            if id(value.real) in grad_targets or (others and written):
                self._join(first, value, others)
            elif not (grad_targets and value.fake.requires_grad):
                continue
            elif is_gradient(value) or not guard_tensor_identity(value):
                for each in grad_targets.values():
                    self._externals.guard_alias(each.source, value.source, False)
        self._guard_unrelated_views()

    def _guard_unrelated_views(self) -> None:
        """No other input is a view of what one is that came to require grad, or to have another shape: it would have
        come to so with it, and what was decided by it would be otherwise."""
        inputs = [(node, value) for places in self._tape.input_aliases() for node, value in places]
        for node, value in inputs:
            if value.real is None or not metadata_changed(node, value.fake):
                continue
            for _, other in inputs:
                if other.real is None or other.real is value.real:
                    continue
                if not have_distinct_bases(value.real, other.real):
                    raise SkipFrame("an input that comes to require grad shares memory with another input")
                self._externals.guard_alias(value.source, other.source, None)

    def _join(self, first: fx.Node, value: Tensor, others: list[tuple[fx.Node, Tensor]]) -> None:
        identity_guarded = guard_tensor_identity(value)
        for node, each in others:
            if not (guard_tensor_identity(each) and identity_guarded):
                self._externals.guard_alias(value.source, each.source, True)
            self._externals.sizes.equate(tensor_spec(first), tensor_spec(node))
            node.replace_all_uses_with(first)
            self.joined[node] = first

    def order(self, collected: int) -> tuple[int, ...]:
        """Placeholders in the order their values are collected; returns which of the collected they are.

        Those of a whole step come in the order they are used, and its outputs in the order they are made: so it is the
        same graph whether it makes the optimizer's state or finds it.
        """
        places = {node: source.index for node, source in self._tape.inputs.items()}
        places |= {node: collected + number for number, node in enumerate(self.preallocated)}
        ordered = sorted(places, key=places.__getitem__)
        if self._externals.grad_targets:
            used = [each for node in self._tape.graph.nodes for each in node.all_input_nodes if each in places]
            ordered = list(dict.fromkeys(used))
        previous: fx.Node | None = None
        for node in ordered:
            if previous is not None:
                previous.append(node)
            previous = node
        return tuple(places[node] for node in ordered)
