"""Computes the gradients of a convolution's image and filter in two calls where the image is computed for them.

    r = relu(norm(x)); both = convolution_backward(g, r, w, …, [True, True, False])
    →  image = convolution_backward(g, x, w, …, [True, False, False]); r = relu(norm(x))
       filter = convolution_backward(g, r, w, …, [False, True, False])

The image's gradient depends on the layout of the image, not on its values. So the kernel that reads `x` and that
gradient, for the norm, computes `r` too: `x` is read once less. Libraries compute both gradients separately anyway. An
image computed from several others stays: a kernel that reads all of them and adds up gradients has too many registers.
"""

import operator

import torch
from torch import fx

from smelt.base.rewrite_budget import RewriteBudget
from smelt.device.host_library import on_host
from smelt.ir.graph import Traced
from smelt.ir.tensorspec import TensorSpec, set_spec, spec_of, tensor_spec
from smelt.simplify.aliasing import insert

aten = torch.ops.aten

_MAX_STEPS = 64  # from an image to what it is computed from


def separate_gradients(traced: Traced, budget: RewriteBudget) -> Traced:
    for node in list(traced.graph.nodes):
        if node.target is not aten.convolution_backward.default or not (node.args[-1][0] and node.args[-1][1]):
            continue
        source = _same_layout(node.args[1])
        if source is not None and budget.take(node):
            _separate(node, source)
    return traced


def _same_layout(image: fx.Node) -> fx.Node | None:
    """The only input of the graph with the image's shape from which the image is computed, if it is laid out alike."""
    spec = tensor_spec(image)
    if on_host(spec.device) or spec.varies or image.op == "placeholder":
        return None
    seen, waiting, sources = {image}, [image], list[fx.Node]()
    while waiting:
        node = waiting.pop()
        if node.op == "placeholder":
            sources.append(node)
        elif not _is_pointwise(node) or len(seen) > _MAX_STEPS:
            return None
        else:
            new = [each for each in node.all_input_nodes if each not in seen and _has_shape(each, spec)]
            seen.update(new)
            waiting += new
    return sources[0] if len(sources) == 1 and spec_of(sources[0]) == spec else None


def _is_pointwise(node: fx.Node) -> bool:
    op = node.target
    return isinstance(op, torch._ops.OpOverload) and (torch.Tag.pointwise in op.tags or op is aten._to_copy.default)


def _has_shape(node: fx.Node, like: TensorSpec) -> bool:
    spec = spec_of(node)
    return isinstance(spec, TensorSpec) and spec.shape == like.shape


def _separate(node: fx.Node, source: fx.Node) -> None:
    specs = spec_of(node)
    gradient, image, *rest, mask = node.args
    assert isinstance(specs, tuple) and isinstance(mask, list | tuple)
    nothing = [None] * (len(specs) - 1)
    of_image = insert(node, node.target, (gradient, source, *rest, [True, False, False]))
    of_filter = insert(node, node.target, (gradient, image, *rest, [False, *mask[1:]]))
    set_spec(of_image, (specs[0], *nothing))
    set_spec(of_filter, (None, *specs[1:]))
    for part in list(node.users):
        assert part.target is operator.getitem
        part.args = (of_image if part.args[1] == 0 else of_filter, part.args[1])
    node.graph.erase_node(node)
