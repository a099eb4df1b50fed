"""Chooses layouts of matmul operands and results that make copies contiguous.

    copy = clone(x): [4, 64, 128] of an x laid out [4, 128, 64]; bmm(y, copy)
    →  copy = clone(permute(x)): [4, 128, 64]; bmm(y, permute(copy))

    clone(permute(bmm(a, b)))  →  clone(bmm(permute(b), permute(a)))

A matmul reads rows or columns of its operands equally well. A transposing copy takes several times as long as a
contiguous one.
"""

from collections.abc import Callable, Iterator

import torch
from torch import fx

from smelt.base.rewrite_budget import RewriteBudget
from smelt.device.host_library import on_host
from smelt.ir.graph import Traced
from smelt.ir.tensorspec import TensorSpec, spec_of, tensor_spec
from smelt.meta.effects import is_view
from smelt.meta.rules.strides import is_contiguous
from smelt.simplify.aliasing import AliasedMemory, insert, spec_of_call

aten = torch.ops.aten

# Products and the places of the matrices among their arguments.
_PRODUCTS = {
    aten.mm.default: (0, 1),
    aten.bmm.default: (0, 1),
    aten.addmm.default: (1, 2),
    aten.baddbmm.default: (1, 2),
}
_CONTIGUOUS: dict[str, object] = {"memory_format": torch.contiguous_format}


def transpose_matrices(traced: Traced, budget: RewriteBudget) -> Traced:
    memory = AliasedMemory(traced.graph)
    for node in list(traced.graph.nodes):
        if node.target is aten.clone.default:
            _transpose_copy(node, memory, budget)
        elif node.target in (aten.mm.default, aten.bmm.default):
            _transpose_product(node, memory, budget)
    return traced


def _transpose_copy(node: fx.Node, memory: AliasedMemory, budget: RewriteBudget) -> None:
    """A copy for products alone, of a column-major matrix."""
    if memory.leaves(node) or not _is_row_major(node):
        return
    source = node.args[0]
    assert isinstance(source, fx.Node)
    readers = list(_ends(node, _is_view))
    if not _lies_in_columns(tensor_spec(source)) or not all(_multiplies(end, by) for end, by in readers):
        return
    inserted: list[fx.Node] = []
    straight = _transposed(node, source, inserted)
    copy = _insert(node, aten.clone.default, (straight,), _CONTIGUOUS, inserted) if straight is not None else None
    _put_in_place(node, copy, readers, inserted, budget, copied=False)


def _transpose_product(node: fx.Node, memory: AliasedMemory, budget: RewriteBudget) -> None:
    """A product whose result is copied column by column."""
    if memory.leaves(node) or not _is_row_major(node):
        return
    readers = list(_ends(node, _follows))
    columns = all(
        end.target is aten.clone.default and _is_row_major(end) and _is_transposed(tensor_spec(by), node)
        for end, by in readers
    )
    if not readers or not columns:
        return
    inserted: list[fx.Node] = []
    left, right = (_transposed(node, operand, inserted) for operand in node.args)
    product = None
    if left is not None and right is not None and isinstance(node.target, torch._ops.OpOverload):
        product = _insert(node, node.target, (right, left), {}, inserted)
    _put_in_place(node, product, readers, inserted, budget, copied=True)


def _put_in_place(
    node: fx.Node,
    transposed: fx.Node | None,
    readers: list[tuple[fx.Node, fx.Node]],
    inserted: list[fx.Node],
    budget: RewriteBudget,
    *,
    copied: bool,
) -> None:
    """`transposed` has the rows of `node` for columns: whatever was made of the one is made of the other. If it
    is `copied` in the end, it may be so before a view that could not be had otherwise."""
    rebuilt = _transposed(node, transposed, inserted) if transposed is not None else None
    same = {node: rebuilt}
    for _, by in readers:
        _rebuilt(by, same, inserted, copied)
    if any(same[by] is None for _, by in readers) or not budget.take(node):
        for extra in reversed(inserted):
            extra.graph.erase_node(extra)
        return
    for end, by in readers:
        replacement = same[by]
        assert replacement is not None
        end.replace_input_with(by, replacement)


def _rebuilt(
    node: fx.Node, same: dict[fx.Node, fx.Node | None], inserted: list[fx.Node], copied: bool
) -> fx.Node | None:
    """The same call on what stands for its argument; None where that cannot be."""
    if node not in same:
        source, *rest = node.args
        assert isinstance(source, fx.Node) and isinstance(node.target, torch._ops.OpOverload)
        argument = _rebuilt(source, same, inserted, copied)
        same[node] = None
        if argument is not None:
            same[node] = _insert(node, node.target, (argument, *rest), dict(node.kwargs), inserted)
        if argument is not None and same[node] is None and copied and node.target is aten.view.default:
            copy = _insert(node, aten.clone.default, (argument,), _CONTIGUOUS, inserted)
            same[node] = _insert(node, aten.view.default, (copy, *rest), {}, inserted) if copy is not None else None
    return same[node]


def _insert(
    node: fx.Node,
    target: torch._ops.OpOverload,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    inserted: list[fx.Node],
) -> fx.Node | None:
    spec = spec_of_call(target, args, kwargs)
    if spec is None:
        return None
    inserted.append(insert(node, target, args, kwargs, spec))
    return inserted[-1]


def _transposed(node: fx.Node, value: object, inserted: list[fx.Node]) -> fx.Node | None:
    """A matrix, or several, with rows for columns; a new node before `node`."""
    assert isinstance(value, fx.Node)
    rank = len(tensor_spec(value).shape)
    return _insert(node, aten.permute.default, (value, [*range(rank - 2), rank - 1, rank - 2]), {}, inserted)


def _ends(node: fx.Node, through: Callable[[fx.Node], bool]) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Whoever reads a value in the end, and the node that is read: the value, or what is made of it on the way."""
    for user in node.users:
        if through(user):
            yield from _ends(user, through)
        else:
            yield user, node


def _is_view(node: fx.Node) -> bool:
    return is_view(node.target) and len(node.all_input_nodes) == 1 and isinstance(spec_of(node), TensorSpec)


def _follows(node: fx.Node) -> bool:
    """A view of one tensor, or a computation at each of its points, but no copy."""
    if _is_view(node) or node.target is aten.clone.default:
        return node.target is not aten.clone.default
    at_points = isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags
    return (at_points or node.target is aten._to_copy.default) and node.all_input_nodes == [node.args[0]]


def _multiplies(node: fx.Node, by: fx.Node) -> bool:
    places = _PRODUCTS.get(node.target, ())  # type: ignore[call-overload]
    return all(number in places for number, argument in enumerate(node.args) if argument is by) and bool(places)


def _is_row_major(node: fx.Node) -> bool:
    spec = spec_of(node)
    if not isinstance(spec, TensorSpec) or not on_host(spec.device) or len(spec.shape) < 2 or spec.varies:
        return False
    return min(spec.shape[-2:]) > 1 and is_contiguous(spec.shape, spec.stride)


def _lies_in_columns(spec: TensorSpec) -> bool:
    return len(spec.shape) >= 2 and spec.stride[-2] == 1 and spec.stride[-1] != 1


def _is_transposed(spec: TensorSpec, product: fx.Node) -> bool:
    """Whether a copy of `spec` goes through columns of the product, one after the other."""
    columns = tensor_spec(product).shape[-1]
    return len(spec.shape) >= 1 and spec.shape[-1] > 1 and spec.stride[-1] == columns
