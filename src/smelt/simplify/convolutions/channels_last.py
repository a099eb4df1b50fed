"""Lays out images channels-last between convolutions where the library is faster with that layout.

    y = convolution(x, w); z = relu(y); out = convolution(z, v, groups=channels); return out
    →  z = relu(convolution(x, w)); last = clone(z, channels_last); out = clone(convolution(last, v, …)); return out

Pointwise results of a channels-last image are channels-last too, and later convolutions read them without a copy.
Reductions read the image in either layout. Other readers, and values that leave the graph, get a copy in eager's
layout. The pass runs before a training step is split, so that saved images have the layout that the backward reads.

cuDNN's tensor-core kernels work channels-last: for a contiguous image, it copies the image, the filter and the result
at every call. So on GPUs whole graphs are laid out so, with their filters, if that copies fewer bytes.
"""

import operator
from typing import Any

import torch
from torch import fx

from smelt.base.rewrite_budget import RewriteBudget
from smelt.device.host_library import on_host, slow_convolutions
from smelt.ir.graph import Traced
from smelt.ir.tensorspec import TensorSpec, set_spec, spec_of, tensor_spec
from smelt.meta.rules.strides import channels_last_stride, is_channels_last, is_contiguous
from smelt.simplify.aliasing import insert, spec_of_call
from smelt.symbolic.symsize import hint

aten = torch.ops.aten

_CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)
_NARROW = (torch.float16, torch.bfloat16)
_FOLLOWING = (aten._to_copy.default, aten.constant_pad_nd.default)  # besides what is computed point by point


def lay_images(traced: Traced, budget: RewriteBudget, how: str) -> Traced:
    """`how` as the option `convolutions` has it: `channels_last` means all of them, `auto` as suits the processor."""
    if how not in ("channels_last", "auto"):
        return traced
    convolutions = [node for node in traced.graph.nodes if node.target in _CONVOLUTIONS]
    if how == "auto":
        on_gpu = [node for node in convolutions if _is_for_tensor_cores(node)]
        if on_gpu and not _copies_less(traced.graph, frozenset(on_gpu)):
            on_gpu = []
        by_channel = [] if slow_convolutions() else [node for node in convolutions if _is_by_channel(node)]
        convolutions = on_gpu + by_channel
    if convolutions:
        _Images(traced.graph, frozenset(convolutions), budget).run()
    return traced


def _image_of(node: fx.Node) -> TensorSpec:
    """The image that a convolution or its gradient reads."""
    image = node.args[0 if node.target is aten.convolution.default else 1]
    assert isinstance(image, fx.Node)
    return tensor_spec(image)


def _is_for_tensor_cores(node: fx.Node) -> bool:
    """Whether cuDNN computes a convolution by kernels that work channels-last."""
    image = _image_of(node)
    groups = node.args[8 if node.target is aten.convolution.default else 9]
    is_narrow = image.dtype in _NARROW or (image.dtype is torch.float32 and bool(torch.backends.cudnn.allow_tf32))
    return image.device.type == "cuda" and is_narrow and bool(groups == 1) and len(image.shape) == 4


def _copies_less(graph: fx.Graph, wanted: frozenset[fx.Node]) -> bool:
    """Whether the copies between layouts have fewer bytes than those that the library makes of contiguous images. Tried
    on a copy of the graph."""
    twins: dict[fx.Node, fx.Node] = {}
    trial = fx.Graph()
    trial.output(trial.graph_copy(graph, twins))
    before = set(trial.nodes)
    library = sum(_image_bytes(node) for node in wanted)
    _Images(trial, frozenset(twins[node] for node in wanted), RewriteBudget()).run()
    copies = [node for node in trial.nodes if node not in before and node.target is aten.clone.default]
    return sum(hint(tensor_spec(node).nbytes) for node in copies) < library


def _image_bytes(node: fx.Node) -> int:
    """Bytes of the images that a call reads and writes."""
    arguments = node.args[: 1 if node.target is aten.convolution.default else 2]
    images: list[object] = [spec_of(each) for each in arguments if isinstance(each, fx.Node)]
    results = spec_of(node)
    images += results[:1] if isinstance(results, tuple) else [results]
    return sum(hint(spec.nbytes) for spec in images if isinstance(spec, TensorSpec))


def _is_by_channel(node: fx.Node) -> bool:
    """A convolution of each channel by itself does so little with an image that bringing it into the library's blocks
    of channels, and back, takes longer. Measured on x86: where all images are channels-last, MobileNetV2 is trained in
    0.58 of eager's time, a ResNet, which has none of these, in 1.37."""
    if not on_host(_image_of(node).device):
        return False
    weight = node.args[1 if node.target is aten.convolution.default else 2]
    groups = node.args[8 if node.target is aten.convolution.default else 9]
    return isinstance(weight, fx.Node) and isinstance(groups, int) and groups == tensor_spec(weight).shape[0] != 1


class _Images:
    """One pass over a graph. `last` has for a value the same value channels-last: all that is left of it in the end."""

    def __init__(self, graph: fx.Graph, wanted: frozenset[fx.Node], budget: RewriteBudget) -> None:
        self.graph = graph
        self.wanted = wanted
        self.budget = budget
        self.last: dict[fx.Node, fx.Node] = {}
        self.copies: dict[fx.Node, fx.Node] = {}  # of values that stay as they are as well
        self.old: list[fx.Node] = []  # whatever goes, in order

    def run(self) -> None:
        for node in list(self.graph.nodes):
            if node.op != "call_function" or node.target is operator.getitem:
                continue
            if node.target is aten.convolution.default:
                self._convolution(node)
            elif node.target is aten.convolution_backward.default:
                self._gradients(node)
            elif self._reads_last(node):
                self._follow(node)
        self._replace_old()

    def _convolution(self, node: fx.Node) -> None:
        x, weight, *rest = node.args
        if not self._takes_last(node, x, transposed=node.args[6]) or not self.budget.take(node):
            return
        args = (self._laid(x, node), self._filter(weight, node), *rest)
        call = insert(node, aten.convolution.default, args, {}, _last(tensor_spec(node)))
        self._stands_for(call, node)

    def _stands_for(self, call: fx.Node, node: fx.Node) -> None:
        self.last[node] = call
        self.old.append(node)

    def _gradients(self, node: fx.Node) -> None:
        gradient, x, weight, *rest = node.args
        if not self._takes_last(node, x, transposed=node.args[7]) or not self.budget.take(node):
            return
        specs = spec_of(node)
        assert isinstance(specs, tuple)
        args = (self._laid(gradient, node), self._laid(x, node), self._filter(weight, node), *rest)
        call = insert(node, aten.convolution_backward.default, args)
        images = tuple(None if spec is None else _last(spec) for spec in specs[:2])
        set_spec(call, (*images, *specs[2:]))
        self.old.append(node)
        for part in list(node.users):
            number = part.args[1]
            assert isinstance(number, int)
            with self.graph.inserting_before(part):
                twin = self.graph.call_function(operator.getitem, (call, number))
            twin.meta.update(part.meta)
            if number < len(images) and images[number] != specs[number]:
                set_spec(twin, images[number])
                self._stands_for(twin, part)
            else:
                part.replace_all_uses_with(twin)
                self.old.append(part)

    def _takes_last(self, node: fx.Node, x: Any, *, transposed: Any) -> bool:
        spec = tensor_spec(x)
        known_library = on_host(spec.device) or spec.device.type == "cuda"
        if transposed or spec.varies or not known_library or is_channels_last(spec.shape, spec.stride):
            return False
        is_image = len(spec.shape) == 4 and is_contiguous(spec.shape, spec.stride)
        return is_image and (node in self.wanted or x in self.last)

    def _reads_last(self, node: fx.Node) -> bool:
        return any(source in self.last for source in node.all_input_nodes)

    def _follow(self, node: fx.Node) -> None:
        """The same call on channels-last images, if its result then does too, or is no image."""
        spec = spec_of(node)
        if not isinstance(spec, TensorSpec) or not isinstance(node.target, torch._ops.OpOverload) or spec.varies:
            return
        if torch.Tag.reduction in node.target.tags:
            self._reduce(node, spec)
            return
        if node.target is aten.slice.Tensor:
            self._cut(node)
            return
        if node.target is aten.max_pool2d_with_indices_backward.default:
            self._pool_gradient(node, spec)
            return
        at_points = torch.Tag.pointwise in node.target.tags or node.target in _FOLLOWING
        if not at_points or len(spec.shape) != 4 or not is_contiguous(spec.shape, spec.stride):
            return
        args = tuple(self._operand(argument, spec, node) for argument in node.args)
        result = spec_of_call(node.target, args, dict(node.kwargs))
        if result is None or result.shape != spec.shape or not is_channels_last(spec.shape, result.stride):
            return
        self._stands_for(insert(node, node.target, args, dict(node.kwargs), result), node)

    def _cut(self, node: fx.Node) -> None:
        """A part of an image, as a view. Whoever reads it otherwise keeps the view there was."""
        x = node.args[0]
        assert isinstance(x, fx.Node)
        args = (self.last[x], *node.args[1:])
        spec = spec_of_call(aten.slice.Tensor, args, dict(node.kwargs))
        if spec is not None:
            self._stands_for(insert(node, aten.slice.Tensor, args, dict(node.kwargs), spec), node)

    def _pool_gradient(self, node: fx.Node, spec: TensorSpec) -> None:
        """The library's result is laid out as the image that was pooled."""
        gradient, x, *settings, indices = node.args
        images = [each for each in (gradient, x, indices) if isinstance(each, fx.Node)]
        specs = [tensor_spec(each) for each in (node, *images)]
        if any(len(each.shape) != 4 or not is_contiguous(each.shape, each.stride) for each in specs):
            return
        args = (self._laid(gradient, node), self._laid(x, node), *settings, self._laid(indices, node))
        self._stands_for(insert(node, aten.max_pool2d_with_indices_backward.default, args, {}, _last(spec)), node)

    def _reduce(self, node: fx.Node, spec: TensorSpec) -> None:
        """Where a sum is read does not show in it, but for the strides of dims without extent."""
        x = node.args[0]
        if not isinstance(x, fx.Node) or x not in self.last or not isinstance(node.target, torch._ops.OpOverload):
            return
        args = (self.last[x], *node.args[1:])
        result = spec_of_call(node.target, args, dict(node.kwargs))
        if result is not None and _same(result, spec):
            node.args = args

    def _operand(self, argument: Any, spec: TensorSpec, node: fx.Node) -> Any:
        if not isinstance(argument, fx.Node):
            return argument
        if argument in self.last:
            return self.last[argument]
        argument_spec = spec_of(argument)
        if not isinstance(argument_spec, TensorSpec) or argument_spec.shape != spec.shape:
            return argument
        return self._laid(argument, node) if is_contiguous(argument_spec.shape, argument_spec.stride) else argument

    def _laid(self, value: Any, node: fx.Node) -> fx.Node:
        """A value channels-last, for `node` and those behind it."""
        known = self.last.get(value) or self.copies.get(value)
        if known is not None:
            return known
        spec = tensor_spec(value)
        if is_channels_last(spec.shape, spec.stride):
            assert isinstance(value, fx.Node)
            return value
        layout = {"memory_format": torch.channels_last}
        self.copies[value] = insert(node, aten.clone.default, (value,), layout, _last(spec))
        return self.copies[value]

    def _filter(self, weight: Any, node: fx.Node) -> fx.Node:
        """What cuDNN would copy at every call."""
        spec = tensor_spec(weight)
        if on_host(spec.device) or spec.varies or not is_contiguous(spec.shape, spec.stride):
            assert isinstance(weight, fx.Node)
            return weight
        return self._laid(weight, node)

    def _replace_old(self) -> None:
        """Copies for those who read what was there before, which goes."""
        for node in reversed(self.old):
            if node.users and node.target is aten.slice.Tensor:
                continue
            if node.users:
                back = insert(node, aten.clone.default, (self.last[node],), {"memory_format": torch.contiguous_format})
                node.replace_all_uses_with(back)
            self.graph.erase_node(node)
        for extra in (*self.last.values(), *reversed(self.copies.values())):
            if not extra.users and (extra.target is aten.slice.Tensor or extra.target is aten.clone.default):
                self.graph.erase_node(extra)


def _last(spec: TensorSpec) -> TensorSpec:
    """The spec of a value that is laid channels-last: its own where that is the same."""
    if is_channels_last(spec.shape, spec.stride):
        return spec
    return TensorSpec(spec.shape, channels_last_stride(spec.shape), spec.dtype, spec.device)


def _same(one: TensorSpec, other: TensorSpec) -> bool:
    strides = zip(one.shape, one.stride, other.stride, strict=False)
    alike = one.shape == other.shape and one.dtype is other.dtype
    return alike and all(size == 1 or first == second for size, first, second in strides)
