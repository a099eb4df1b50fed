"""The reference interpreter of explored machines: runs their graphs eagerly, state by state.

    run(explore(f, (x,)), other)   →   what f(other) returns
"""

from typing import Any

import torch

from smelt.capture.explore.flow import Held, Returned, TracedMachine, TracedState, TracedVariant
from smelt.ir.artifact.machine import ArgumentKind, Branch, Jump, RegisterKind, Scalar, SizeCheck, ValueCheck
from smelt.ir.graph import placeholders
from smelt.ir.tensorspec import NumberSpec, spec_of


class Raised(Exception):
    """The machine ended by an exception of this name."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message = kind, message


class Refused(Exception):
    """No variant of a state fits."""


class Reference:
    """A machine with its state; `visited` are the states of the last call."""

    def __init__(self, machine: TracedMachine) -> None:
        self.machine = machine
        self.kept = {
            number: register.tensor.clone() if register.kind is RegisterKind.STATE else register.tensor
            for number, register in enumerate(machine.registers)
            if register.tensor is not None
        }
        self.visited: list[int] = []
        self._modules: dict[int, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves = list(self.machine.parameters.flatten((args, kwargs)))
        registers: dict[int, torch.Tensor] = dict(self.kept)
        for argument, leaf in zip(self.machine.arguments, leaves, strict=True):
            if argument.kind is ArgumentKind.VALUE:
                continue
            assert argument.register is not None
            dtype = self.machine.registers[argument.register].dtype
            given = leaf.clone() if isinstance(leaf, torch.Tensor) else torch.tensor(leaf, dtype=dtype)
            assert given.dtype is dtype
            registers[argument.register] = given
        self.visited, number = [], 0
        while True:
            self.visited.append(number)
            assert len(self.visited) < 100_000
            end = self._run(self.machine.states[number], registers, leaves)
            if isinstance(end, Returned):
                values = [self._leaf(leaf, registers) for leaf in end.leaves]
                return end.tree.build(iter(values))
            if isinstance(end, Branch):
                condition = registers[end.register]
                assert condition.dtype is torch.bool and condition.shape == ()
                number = end.if_true if condition.item() else end.if_false
            elif isinstance(end, Jump):
                number = end.state
            else:
                raise Raised(end.error, end.message)

    def _run(self, state: TracedState, registers: dict[int, torch.Tensor], leaves: list[Any]) -> Any:
        for variant in state.variants:
            if self._fits(variant, registers, leaves):
                break
        else:
            raise Refused(state.name)
        if variant.traced is None:
            return variant.next
        nodes = placeholders(variant.traced.graph)
        given = [
            int(registers[number].item()) if isinstance(spec_of(node), NumberSpec) else registers[number]
            for node, number in zip(nodes, variant.inputs, strict=True)
        ]
        before = [each.clone() if isinstance(each, torch.Tensor) else each for each in given]
        if id(variant) not in self._modules:
            self._modules[id(variant)] = variant.traced.to_module()
        with torch.no_grad():
            outputs = self._modules[id(variant)](*given)
        for number, old, new in zip(variant.inputs, before, given, strict=True):
            if isinstance(new, torch.Tensor) and number not in variant.written:
                assert torch.equal(old.nan_to_num(), new.nan_to_num()), "a graph wrote what it may not write"
        for number, output in zip(variant.results, outputs, strict=True):
            if number is not None:
                assert self.machine.registers[number].kind is RegisterKind.LOCAL
                assert output.dtype is self.machine.registers[number].dtype
                if not isinstance(variant.next, Returned):
                    assert output.is_contiguous()
                registers[number] = output
        return variant.next

    def _fits(self, variant: TracedVariant, registers: dict[int, torch.Tensor], leaves: list[Any]) -> bool:
        values = {
            each.symbol: int(held.item()) if each.dim is None else held.shape[each.dim]
            for each in variant.symbols
            for held in (registers[each.register],)
        }
        for check in variant.checks:
            if isinstance(check, SizeCheck):
                if not check.guard.holds(lambda symbol: values[symbol.text]):
                    return False
                continue
            assert isinstance(check, ValueCheck)
            if type(leaves[check.argument]) is not type(check.value) or leaves[check.argument] != check.value:
                return False
        return True

    def _leaf(self, leaf: Any, registers: dict[int, torch.Tensor]) -> Any:
        if isinstance(leaf, Held):
            return registers[leaf.register]
        return registers[leaf.register].item() if isinstance(leaf, Scalar) else leaf.value
