"""Symbolic numbers as graph nodes: sizes and scalars that a graph computes at each call.

    writer.write(torch.SymInt over 2*s0 + 1)   →   size = x.size(0); mul = mul(2, size); add = add(mul, 1)

Equal numbers are one node. `leaf` says where a symbol, or a float that is given at each call, comes from.
"""

import operator
from collections.abc import Callable, Iterable
from typing import Any

from torch import fx

from smelt.ir.tensorspec import NumberSpec, set_spec, spec_of
from smelt.symbolic.expressions import DivModMinMax, Expression, Symbol
from smelt.symbolic.symnode import Formula, meaning

_FUNCTIONS: dict[str, Callable[..., Any]] = {"//": operator.floordiv, "%": operator.mod, "max": max, "min": min}

Leaf = Symbol | Formula


class NumberWriter:
    """Writes numbers into `graph`, each once; `added` hears of every node."""

    def __init__(
        self, graph: fx.Graph, leaf: Callable[[Leaf], fx.Node], added: Callable[[fx.Node], None] = lambda node: None
    ) -> None:
        self.graph = graph
        self._leaf = leaf
        self._added = added
        self._written: dict[Any, fx.Node] = {}

    def write(self, number: Any) -> Any:
        """The node that returns a symbolic number; a plain one as it is."""
        return self._number(meaning(number))

    def given(self, leaf: Leaf, node: fx.Node) -> None:
        """A number that a node returns."""
        self._written[leaf] = node

    def forget(self, nodes: Iterable[fx.Node]) -> None:
        """These nodes are gone."""
        gone = set(nodes)
        self._written = {what: node for what, node in self._written.items() if node not in gone}

    def _number(self, what: Any) -> Any:
        if isinstance(what, Expression):
            return what.constant if what.constant is not None else self._once(what, self._expression)
        return self._once(what, self._formula) if isinstance(what, Formula) else what

    def _once(self, what: Any, write: Callable[[Any], fx.Node]) -> fx.Node:
        node = self._written.get(what)
        if node is None:
            node = self._written[what] = write(what)
            if not isinstance(what, DivModMinMax):
                set_spec(node, NumberSpec(what if not isinstance(what, Symbol) else Expression.of(what)))
        return node

    def _call(self, function: Callable[..., Any], *operands: Any) -> fx.Node:
        node = self.graph.call_function(function, operands)
        self._added(node)
        return node

    def _expression(self, what: Expression) -> fx.Node:
        total: Any = None
        named = sorted(what.terms.items(), key=lambda term: (not term[0], [atom.text for atom in term[0]]))
        for monomial, factor in named:
            product: Any = None if factor == 1 and monomial else factor
            for atom in monomial:
                node = self._once(atom, self._leaf if isinstance(atom, Symbol) else self._compound)
                product = node if product is None else self._part(operator.mul, product, node)
            total = product if total is None else self._part(operator.add, total, product)
        assert isinstance(total, fx.Node)
        return total

    def _part(self, function: Callable[..., Any], left: Any, right: Any) -> fx.Node:
        node = self._call(function, left, right)
        set_spec(node, NumberSpec(function(_meaning_of(left), _meaning_of(right))))
        return node

    def _compound(self, what: DivModMinMax) -> fx.Node:
        node = self._call(_FUNCTIONS[what.function], self._number(what.left), self._number(what.right))
        set_spec(node, NumberSpec(Expression.of(what)))
        return node

    def _formula(self, what: Formula) -> fx.Node:
        if what.function is None:
            return self._leaf(what)
        return self._call(what.function, *map(self._number, what.operands))


def _meaning_of(part: Any) -> Expression:
    if isinstance(part, fx.Node):
        spec = spec_of(part)
        assert isinstance(spec, NumberSpec) and isinstance(spec.what, Expression)
        return spec.what
    return Expression.of(part)
