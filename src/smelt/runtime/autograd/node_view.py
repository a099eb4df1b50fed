"""The node of a compiled graph as compiled autograd sees it, which does the engine's work instead of the engine.

    joined_of(loss.grad_fn)   →   Joined: its backward as a graph, what it saved, where its gradients go
"""

from collections.abc import Sequence
from typing import Any

from smelt.base.fast_dataclass import dataclass
from smelt.ir.graph import Traced
from smelt.ir.tensorspec import TensorSpec
from smelt.runtime.autograd.differentiable import Differentiable
from smelt.runtime.autograd.double_backward import let_go
from smelt.runtime.autograd.function_node import CompiledNode, without_unfed
from smelt.runtime.autograd.saved_tensors import Left, look, spend
from smelt.runtime.autograd.split_nodes import InputGroupNode, PartOfResults, SplitCall


@dataclass(frozen=True, slots=True)
class CompiledNodeView:
    """The node of a compiled graph, for whoever does the engine's work instead of it."""

    ctx: Any
    state: Differentiable
    crossing: SplitCall | None = None  # where it is several nodes

    @property
    def key(self) -> Any:
        """What a captured backward depends on."""
        return self.state, bool(self.ctx.__dict__.get("left"))

    @property
    def number(self) -> int:
        return self.state.number

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """Of what its backward is given besides gradients."""
        return tuple(saved.spec for saved in self.state.plan.saved)

    @property
    def tangents(self) -> tuple[TensorSpec, ...]:
        return self.state.plan.tangents

    def graph(self, arrived: int) -> tuple[Traced, bool]:
        """The backward for gradients of some results, and whether it takes zeros for the others."""
        graph_for = self.state.graphs
        assert graph_for is not None
        found = graph_for(arrived)
        if found is not None:
            return found, False
        whole = graph_for((1 << len(self.tangents)) - 1)
        assert whole is not None
        return whole, True

    def saved(self, arrived: int) -> Sequence[Any]:
        """What the backward is given, still there and unchanged; else an error, as PyTorch words it."""
        return look(self.ctx, self.state, arrived)[0][: len(self.state.plan.saved)]

    def spend(self, arrived: int) -> None:
        """A backward has been that does not retain the graph."""
        if not arrived:
            return
        left: Left | None = self.ctx.__dict__.get("left")
        saved, spent = look(self.ctx, self.state, arrived)
        others = self.ctx.joined[1] if "joined" in self.ctx.__dict__ else self.ctx.__dict__.get("others")
        if spend(self.ctx, self.state, arrived, saved, left, spent) and others:
            let_go(others)
        if self.crossing is not None:
            self.crossing.release()

    def placed(self, gradients: Sequence[Any], arrived: int) -> list[Any]:
        """Per argument of the forward, its gradient."""
        handed = self.state.out(self.flowing(gradients, arrived))
        return [None, *handed] if "joined" in self.ctx.__dict__ else list(handed)

    def flowing(self, gradients: Sequence[Any], arrived: int) -> list[Any]:
        """Per input of the graph, its gradient."""
        plan = self.state.plan
        if plan.grad_depends_on:
            gradients = without_unfed(gradients, plan.grad_depends_on, arrived)
        placed: list[Any] = [None] * plan.inputs
        for index, gradient in zip(plan.gradients, gradients, strict=True):
            placed[index] = gradient
        return placed


def crossing_of(ctx: Any) -> SplitCall | None:
    """The crossing that a node leads to or from."""
    return ctx.crossing if type(ctx)._forward_cls in (PartOfResults, InputGroupNode) else None


def joined_of(ctx: Any) -> CompiledNodeView | None:
    """The compiled graph whose node this is; None for other nodes, and where saving hooks have seen what it keeps."""
    function = type(ctx)._forward_cls
    if function is PartOfResults:
        state, holder = ctx.crossing.state, ctx.crossing.ctx
        return (
            None if holder.joined[2] or not state.can_be_written_out else CompiledNodeView(holder, state, ctx.crossing)
        )
    state = getattr(function, "_smelt_state", None)
    if state is None and function is CompiledNode and not ctx.joined[2]:
        state = ctx.joined[0]
    return None if state is None or not state.can_be_written_out else CompiledNodeView(ctx, state)
