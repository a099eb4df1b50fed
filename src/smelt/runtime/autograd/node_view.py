"""The autograd node of a compiled graph, as compiled autograd reads it.

    view_of_node(loss.grad_fn)   →   CompiledNodeView: its backward as a graph, what it saved, where its gradients go
"""

from collections.abc import Sequence
from typing import Any

from smelt.base.fast_dataclass import dataclass
from smelt.ir.graph import Traced
from smelt.ir.tensorspec import TensorSpec
from smelt.runtime.autograd.differentiable import Differentiable
from smelt.runtime.autograd.double_backward import drop_unsaved
from smelt.runtime.autograd.function_node import Compiled, by_input, without_unreached
from smelt.runtime.autograd.saved_tensors import RemainingSaved, peek_saved, release_saved
from smelt.runtime.autograd.split_nodes import InputGroupNode, ResultGroupNode, SplitCall


@dataclass(frozen=True, slots=True)
class CompiledNodeView:
    """The autograd node of a compiled graph, for code that runs in place of the engine."""

    ctx: Any
    state: Differentiable
    split_call: SplitCall | None = None  # where it is several nodes

    @property
    def key(self) -> Any:
        """What a captured backward depends on."""
        return self.state, bool(self.ctx.__dict__.get("remaining"))

    @property
    def number(self) -> int:
        return self.state.number

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """Specs of the saved tensors that its backward takes."""
        return tuple(saved.spec for saved in self.state.plan.saved)

    @property
    def tangents(self) -> tuple[TensorSpec, ...]:
        return self.state.plan.tangents

    def graph(self, arrived: int) -> tuple[Traced, bool]:
        """The backward for gradients of some results, and whether it takes zeros for the others."""
        graph_for = self.state.graphs
        assert graph_for is not None
        graph = graph_for(arrived)
        if graph is not None:
            return graph, False
        whole = graph_for((1 << len(self.tangents)) - 1)
        assert whole is not None
        return whole, True

    def saved(self, arrived: int) -> Sequence[Any]:
        """The saved tensors; raises PyTorch's error if they were freed or modified in-place."""
        return peek_saved(self.ctx, self.state, arrived)[0][: len(self.state.plan.saved)]

    def release_saved(self, arrived: int) -> None:
        """Free what is saved: a backward ran that does not retain the graph."""
        if not arrived:
            return
        remaining: RemainingSaved | None = self.ctx.__dict__.get("remaining")
        saved, freed = peek_saved(self.ctx, self.state, arrived)
        noted = self.ctx.__dict__
        unsaved = noted["compiled_call"][1] if "compiled_call" in noted else noted.get("unsaved")
        if release_saved(self.ctx, self.state, arrived, saved, remaining, freed) and unsaved:
            drop_unsaved(unsaved)
        if self.split_call is not None:
            self.split_call.release()

    def placed(self, gradients: Sequence[Any], arrived: int) -> list[Any]:
        """Per argument of the forward, its gradient."""
        handed = self.state.out(self.flowing(gradients, arrived))
        return [None, *handed] if "compiled_call" in self.ctx.__dict__ else list(handed)

    def flowing(self, gradients: Sequence[Any], arrived: int) -> list[Any]:
        """Per input of the graph, its gradient."""
        plan = self.state.plan
        if plan.grad_depends_on:
            gradients = without_unreached(gradients, plan.grad_depends_on, arrived)
        return by_input(plan, gradients)


def split_call_of(ctx: Any) -> SplitCall | None:
    """The call of a split graph that a node belongs to."""
    return ctx.split_call if type(ctx)._forward_cls in (ResultGroupNode, InputGroupNode) else None


def view_of_node(ctx: Any) -> CompiledNodeView | None:
    """The view of a compiled graph's node; None for other nodes, and where saved-tensor hooks packed what it saved."""
    function = type(ctx)._forward_cls
    if function is ResultGroupNode:
        state, holder = ctx.split_call.state, ctx.split_call.ctx
        if holder.compiled_call[2] or not state.can_be_inlined:
            return None
        return CompiledNodeView(holder, state, ctx.split_call)
    state = getattr(function, "_smelt_state", None)
    if state is None and function is Compiled and not ctx.compiled_call[2]:
        state = ctx.compiled_call[0]
    return None if state is None or not state.can_be_inlined else CompiledNodeView(ctx, state)
