"""Which products are kernels of our own, and which are calls of the library.

    ProductChoice("own", targets).why_not_own(call, factors, sums)   →   None, or why the library computes it

With the option `products` at "own", every product is a kernel that the target can make one for; at "library" none is.
At "auto" convolutions are that were left whole for it, where kernels were measured to be faster.
"""

from collections.abc import Sequence
from dataclasses import field

import torch
from torch import fx

from smelt.base.fast_dataclass import dataclass
from smelt.device.host_library import on_host, slow_by_channel
from smelt.fuse.lowering.convolutions import read_convolution, read_gradients
from smelt.fuse.lowering.matrix_products import LayoutOf, ProductCall, read_product
from smelt.fuse.lowering.rules import FactorRead
from smelt.fuse.target_choice import TargetChoice
from smelt.ir.kernel import Axis, Buffer, Contract, Factor, Index, Kernel, Role, Stage, Store
from smelt.ir.tensorspec import TensorSpec, tensor_spec
from smelt.symbolic.shapes import Shape, Size, contiguous_stride, span

aten = torch.ops.aten


def read_products(node: fx.Node, layout_of: LayoutOf) -> dict[int, ProductCall] | str | None:
    """What a call multiplies for each of its results, by number; why no kernel can; None for what is no product. A
    result that is not among them is the gradient of a bias."""
    if node.target is aten.convolution_backward.default:
        return read_gradients(node, layout_of)
    read = read_convolution if node.target is aten.convolution.default else read_product
    call = read(node, layout_of)
    return {0: call} if isinstance(call, ProductCall) else call


def _is_by_channel(node: fx.Node) -> bool:
    """Whether a call convolves each channel by itself, as kernels do faster than the library."""
    if node.target is not aten.convolution.default:
        return False
    x, weight, _, stride, _, _, transposed, _, groups = node.args
    assert isinstance(x, fx.Node) and isinstance(weight, fx.Node) and isinstance(groups, int)
    image, filters = tensor_spec(x), tensor_spec(weight)
    if image.varies or not on_host(image.device) or (transposed and stride != [1, 1]):
        return False
    if not slow_by_channel(filters.shape, groups, stride, image.dtype):  # type: ignore[arg-type]
        return False
    return all(spec.stride == contiguous_stride(spec.shape) for spec in (image, filters))


@dataclass(frozen=True, slots=True)
class ProductChoice:
    """The choice for the products of one program."""

    wanted: str
    targets: TargetChoice
    convolutions: str = "auto"  # as the option says
    _cycles: dict[Kernel, float | str] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Whether any product may be a kernel."""
        return self.wanted != "library"

    def takes(self, node: fx.Node) -> bool:
        """Whether a call may be a kernel, if it is a product and there is code for it."""
        if self.wanted == "auto":
            return self.convolutions == "auto" and _is_by_channel(node)
        return self.wanted == "own"

    def why_not_own(self, call: ProductCall, factors: Sequence[TensorSpec], sums: TensorSpec) -> str | None:
        """Why a product is a library call, after "it"; None if a kernel computes it."""
        kernel = bare_kernel(call, factors, sums)
        found = self._cycles.get(kernel)
        if found is None:
            found = self._cycles[kernel] = self.targets.contraction_cycles(sums.device, kernel)
        return f"multiplies, and there is no code for that: {found}" if isinstance(found, str) else None


def bare_kernel(call: ProductCall, factors: Sequence[TensorSpec], sums: TensorSpec) -> Kernel:
    """The kernel of a product with nothing done to its sums."""
    shape, stride, rule = call.shape, call.stride, call.rule
    outside_in = sorted((dim for dim in range(len(shape)) if shape[dim] != 1), key=lambda dim: -stride[dim])
    cols = rule.cols(shape, stride)
    names = {dim: f"{'j' if stride[dim] < cols else 'i'}{number}" for number, dim in enumerate(outside_in)}
    axes = tuple(Axis(f"k{number}", size) for number, size in enumerate(rule.axes))

    def index(steps: Shape, along: Shape, offset: Size) -> Index:
        terms = [(names[dim], steps[dim]) for dim in outside_in if steps[dim]]
        terms += [(axis.name, step) for axis, step in zip(axes, along, strict=True) if step]
        return Index(tuple(terms), offset)

    def factor(name: str, read: FactorRead) -> Factor:
        bounds = tuple((index(each.stride, each.along, each.offset), each.extent) for each in read.bounds)
        return Factor(name, index(read.stride, read.along, read.offset), bounds)

    buffers = [
        Buffer(name, spec.dtype, span(spec.shape, spec.stride), Role.INPUT)
        for name, spec in zip(("left", "right"), factors, strict=True)
    ]
    buffers.append(Buffer("sums", sums.dtype, span(shape, stride), Role.OUTPUT))
    contract = Contract("p", axes, factor("left", rule.left), factor("right", rule.right), sums.dtype)
    store = Store("sums", index(stride, (0,) * len(axes), 0), "p")
    rows, inner = (
        tuple(Axis(names[dim], shape[dim]) for dim in outside_in if (stride[dim] < cols) is within)
        for within in (False, True)
    )
    return Kernel("product", rows, inner, tuple(buffers), (Stage(True, (contract, store)),))
