"""Decides which products are our own kernels and which are library calls.

    decide(mm of 8×1024×1024)        →   own: "multiplies 8×1024×1024 in about 0.79 of the library's time"
    decide(mm of 1024×1024×1024)     →   not: "multiplies … in about 1.03 of the library's time by a kernel, which …"

With `products="own"`, every product that the target supports is a kernel; with "library" none is. With "auto", a
product is a kernel where the target's estimate is clearly below the measured time of the library. Convolutions that
were not decomposed are kernels where kernels were measured to be faster.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from smelt.base.fast_dataclass import dataclass
from smelt.device.host_costs import convolution_costs, in_use, is_as_fast, library_attention, library_costs
from smelt.device.host_library import (
    may_round_products,
    on_host,
    slow_by_channel,
    slow_followed_windows,
    slow_windows,
)
from smelt.device.product_costs import (
    FAST_ATTENTION_WIDTH,
    LAUNCH,
    MANY_QUERIES,
    AttentionCosts,
    MatrixSizes,
    ProductCosts,
    gpu_library_costs,
    is_measured,
)
from smelt.fuse.lowering.matrix_products import LayoutOf, ProductCall, is_product, read_product
from smelt.fuse.lowering.rules import ContractRule, FactorRead
from smelt.fuse.target_choice import TargetChoice
from smelt.ir.kernel import Axis, Buffer, Contract, Element, Factor, Index, Kernel, Quantized, Role, Stage, Store
from smelt.ir.products.library_product import library_product
from smelt.ir.tensorspec import TensorSpec, tensor_spec
from smelt.ops.record import Pointwise, View
from smelt.ops.registry import record_of
from smelt.symbolic.shapes import Shape, Size, contiguous_stride, span
from smelt.symbolic.symsize import hint

if TYPE_CHECKING:
    from smelt.fuse.lowering.attention import AttentionCall, RefOf
    from smelt.fuse.lowering.recurrence import RecurrenceCall

# What reads convolutions, attention and recurrent layers is imported where a graph has some: most have none.

aten = torch.ops.aten

_CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)


def _read(node: fx.Node, layout_of: LayoutOf) -> dict[int, ProductCall] | str:
    if node.target not in _CONVOLUTIONS:
        return _numbered(read_product(node, layout_of))
    from smelt.fuse.lowering.convolutions import read_convolution, read_gradients

    if node.target is aten.convolution_backward.default:
        return read_gradients(node, layout_of)
    return _numbered(read_convolution(node, layout_of))


def _numbered(call: ProductCall | str) -> dict[int, ProductCall] | str:
    return {0: call} if isinstance(call, ProductCall) else call


def _is_on_host(node: fx.Node) -> bool:
    return on_host(tensor_spec(node).device)


def _why_by_kernel(node: fx.Node) -> str | None:
    """Why kernels may be faster than the library for a convolution; None if they are not. Where costs were measured
    (`_costs_of_followed`), they decide."""
    if node.target is not aten.convolution.default:
        return None
    x, weight, _, stride, _, _, transposed, _, groups = node.args
    assert isinstance(x, fx.Node) and isinstance(weight, fx.Node) and isinstance(groups, int)
    image, filters = tensor_spec(x), tensor_spec(weight)
    if image.varies or not on_host(image.device) or (transposed and stride != [1, 1]):
        return None
    if not _is_contiguous(image) or not _is_contiguous(filters):
        return None
    if slow_by_channel(filters.shape, groups, stride, image.dtype):  # type: ignore[arg-type]
        return "convolves channels one by one"
    if not transposed and slow_windows(filters.shape, groups, image.dtype):
        return "convolves without a copy of the windows"
    if transposed or not _feeds_pointwise(node):
        return None
    by_rule = slow_followed_windows(filters.shape, groups, stride, image.dtype)  # type: ignore[arg-type]
    if by_rule or _costs_of_followed(node) is not None:
        return "convolves, and computes what follows while sums are in the cache"
    return None


def _costs_of_followed(node: fx.Node) -> ProductCosts | None:
    """What a convolution in one group costs with the pointwise operations that follow, if that was measured."""
    if node.target is not aten.convolution.default or not _feeds_pointwise(node):
        return None
    x, weight, _, stride, _, _, transposed, _, groups = node.args
    assert isinstance(x, fx.Node) and isinstance(weight, fx.Node)
    filters = tensor_spec(weight)
    if transposed or groups != 1 or filters.varies or len(filters.shape) != 4:
        return None
    result = tensor_spec(node).shape
    pixels = math.prod(map(hint, (result[0], *result[2:])))
    return convolution_costs(filters.shape, stride, pixels, filters.dtype)  # type: ignore[arg-type]


def _feeds_pointwise(node: fx.Node) -> bool:
    """Whether a pointwise operation reads a result, and nothing else does."""
    users = [user.target for user in node.users]
    if len(users) != 1 or not isinstance(users[0], torch._ops.OpOverload):
        return False
    return isinstance(record_of(users[0]).lowering, Pointwise)


def _is_contiguous(spec: TensorSpec) -> bool:
    """Ignores the strides of extents of one."""
    steps = zip(spec.shape, spec.stride, contiguous_stride(spec.shape), strict=True)
    return all(size == 1 or have == want for size, have, want in steps)


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a product is a kernel of our own, and why or why not, after "it"."""

    own: bool
    why: str


@dataclass(frozen=True, slots=True)
class ProductChoice:
    """The choice for the products of one program."""

    wanted: str
    targets: TargetChoice
    convolutions: str = "auto"  # as the option says
    _cycles: dict[Any, float | str] = field(default_factory=dict)  # of each product and attention met so far

    @property
    def is_open(self) -> bool:
        """Whether any product may be a kernel."""
        return self.wanted != "library"

    def read(self, node: fx.Node, layout_of: LayoutOf) -> dict[int, ProductCall] | str | None:
        """The product of each result of a call, by number; the reason why no kernel can compute it; None if it is no
        product, or not yet compared with kernels. A missing result is the gradient of a bias."""
        convolves = node.target in _CONVOLUTIONS
        if not convolves and not is_product(node):
            return None
        if self.wanted == "library":
            return "is left to the library, as the option `products` asks for"
        if self.wanted == "auto":
            by_kernel = self.convolutions == "auto" and _why_by_kernel(node) if convolves else self._is_compared(node)
            if not by_kernel:
                return None
        return _read(node, layout_of)

    def _is_compared(self, node: fx.Node) -> bool:
        """Whether it is known how long the library takes on the device of a product."""
        return _is_on_host(node) or is_measured(self._gpu(tensor_spec(node).device))

    def _gpu(self, device: torch.device) -> str:
        """The target of kernels on a GPU; "" on the host."""
        return "" if on_host(device) else self.targets.name_of(device) or ""

    def decide(
        self,
        node: fx.Node,
        call: ProductCall,
        factors: Sequence[TensorSpec],
        sums: TensorSpec,
        *,
        along: bool,
        followed: bool,
    ) -> Decision:
        """Who computes a product of a call. `along`: the library would get factors that are contiguous along the sum;
        `followed`: pointwise operations on the sums follow."""
        sizes = MatrixSizes(*map(hint, call.rule.sides(call.shape)))
        if self.wanted == "own" or node.target in _CONVOLUTIONS:
            cycles = self.cycles(call.rule, factors, sums)
            if isinstance(cycles, str):
                return Decision(False, cycles)
            measured = None if self.wanted == "own" else _costs_of_followed(node)
            if measured is not None:  # with what follows
                return self._compared(call, factors, sums, sizes, measured, followed=False)
            asked = f"multiplies {sizes}, as the option `products` asks for"
            return Decision(True, asked if self.wanted == "own" else _why_by_kernel(node) or asked)
        if sizes.multiplications < LEAST:
            return Decision(False, f"multiplies {sizes}, which is too little for a kernel to be worth it")
        gpu = self._gpu(sums.device)
        if gpu:  # which waits for memory at few rows, whatever the precision
            costs = gpu_library_costs(gpu, sizes, factors[1].dtype, along=along)
        elif sums.dtype is torch.float32 and may_round_products():
            return Decision(False, "multiplies, and the library may do so with less precision")
        else:
            costs = library_costs(sizes, sums.dtype, along=along, narrow=tensor_spec(call.right).dtype)
        return self._compared(call, factors, sums, sizes, costs, followed=followed)

    def _compared(
        self,
        call: ProductCall,
        factors: Sequence[TensorSpec],
        sums: TensorSpec,
        sizes: MatrixSizes,
        costs: ProductCosts | str,
        *,
        followed: bool,
    ) -> Decision:
        on_gpu = bool(self._gpu(sums.device))  # where the costs of the library include conversions
        itemsize = (factors[1] if on_gpu else sums).dtype.itemsize
        converted = 0.0 if on_gpu else _conversion_cycles(call, factors)
        if isinstance(costs, str) and not converted:
            return Decision(False, costs)  # before the target is asked, which loads what makes code
        kernel_cycles, least = self.cycles(call.rule, factors, sums), float(LEAST_SAVED)
        if isinstance(kernel_cycles, str):
            return Decision(False, kernel_cycles)
        if math.isinf(kernel_cycles):
            return Decision(False, f"multiplies {sizes}, which kernels for this device do in no known time")
        if isinstance(costs, str):  # at least the conversion; on some processors the product takes as long either way
            ours = LAUNCH + kernel_cycles
            library = converted + (ours if is_as_fast(sums.dtype) else sizes.multiplications / MOST_A_CYCLE)
        else:
            ours, least = costs.launch + kernel_cycles * costs.lateness, costs.least_saved
            followers = LAUNCH + hint(sums.nbytes) * costs.byte_after if followed else 0
            library = costs.cycles(sizes, itemsize) + followers + converted
        share = f"multiplies {sizes} in about {ours / library:.2f} of the library's time"
        own = library - ours >= max(least, LEAST_PART * ours)
        return Decision(own, share if own else f"{share} by a kernel, which saves too little")

    def attend(
        self, node: fx.Node, ref_of: "RefOf", results: Sequence[tuple[int, TensorSpec]]
    ) -> "tuple[AttentionCall, str] | str":
        """The kernel of an attention and the reason, or the reason why it is a library call."""
        from smelt.fuse.lowering.attention import BACKWARD, GPU_FORWARD, read_attention

        if self.wanted == "library":
            return "is left to the library, as the option `products` asks for"
        if not results or (node.target is not BACKWARD and results[0][0] != 0):
            return "is not asked for what it weighs"
        if node.target in GPU_FORWARD and (len(results) > 1 or self.wanted == "auto"):
            reason = self._why_not_on_gpu(node, results)
            if reason is not None:
                return reason
        call = read_attention(node, ref_of, results)
        if isinstance(call, str):
            return call
        on_gpu = node.target in GPU_FORWARD
        is_few = on_gpu and self.wanted == "auto" and call.sizes.queries <= FEW_QUERIES
        if is_few and _sharing(call.kernel) > MOST_SHARING:
            return "attends with many heads that share keys"
        library = None if self.wanted == "own" or on_gpu else self._library_attention(call, results[0][1])
        if isinstance(library, str):
            return library
        cycles = self._cycles_of((results[0][1].device, call.kernel), lambda: call.kernel)
        if isinstance(cycles, str):
            return f"weighs, and there is no code for that: {cycles}"
        if on_gpu and self.wanted == "auto":
            return call, f"attends {call.sizes}: keys are read in place, and no scores are in memory"
        if library is None:
            return call, f"attends {call.sizes}, as the option `products` asks for"
        ours, theirs = library.launch + cycles * library.lateness, library.cycles(call.sizes)
        share = f"attends {call.sizes} in about {ours / theirs:.2f} of the library's time"
        if theirs - ours < max(LEAST_ATTENTION, LEAST_PART * ours):
            return f"{share} by a kernel, which saves too little"
        return call, share

    def recur(
        self, node: fx.Node, ref_of: "RefOf", results: Sequence[tuple[int, TensorSpec]]
    ) -> "tuple[RecurrenceCall, str] | str":
        """Return the kernel of a recurrent layer and why it is used, or why the layer has no kernel."""
        from smelt.fuse.lowering.recurrence import read_recurrence

        call = read_recurrence(node, ref_of, results)
        if isinstance(call, str):
            return call
        cycles = self._cycles_of((results[0][1].device, call.kernel), lambda: call.kernel)
        if isinstance(cycles, str):
            return f"is computed step by step: {cycles}"
        return call, "runs all steps of a recurrent layer"

    def _why_not_on_gpu(self, node: fx.Node, results: Sequence[tuple[int, TensorSpec]]) -> str | None:
        """Why attention on a GPU is the library's, as far as its sizes tell."""
        from smelt.fuse.lowering.attention import EFFICIENT, GPU_FORWARD

        if len(results) > 1:
            return "is asked for more than what it weighs, for gradients"
        spec = results[0][1]
        if not is_measured(self._gpu(spec.device)):
            return "attends, for which nothing was measured on such a GPU"
        if hint(spec.shape[2]) > FEW_QUERIES:
            is_slow = node.target is EFFICIENT and spec.dtype.itemsize == 2 and hint(spec.shape[2]) >= MANY_QUERIES
            is_slow = is_slow and hint(spec.shape[3]) <= FAST_ATTENTION_WIDTH
            return None if is_slow else "attends with many queries"
        key = node.args[1]
        assert isinstance(key, fx.Node)
        is_long = node.target is GPU_FORWARD[0] and hint(tensor_spec(key).shape[2]) >= MANY_KEYS
        return "attends to many keys without a mask, which the library does faster" if is_long else None

    def _library_attention(self, call: "AttentionCall", result: TensorSpec) -> AttentionCosts | str:
        """What the library takes for an attention, or why that is unknown."""
        if not on_host(result.device) or result.dtype is not torch.float32:
            return f"attends {call.sizes}, for which nothing was measured"
        if may_round_products():
            return "multiplies, and the library may do so with less precision"
        return library_attention(call.sizes)

    def cycles(self, rule: ContractRule, factors: Sequence[TensorSpec], sums: TensorSpec) -> float | str:
        """The target's estimate for a product without epilogue, or why it cannot compute it."""
        cycles = self._cycles_of((sums.device, rule, *factors, sums), lambda: bare_kernel(rule, factors, sums))
        return f"multiplies, and there is no code for that: {cycles}" if isinstance(cycles, str) else cycles

    def is_for_library(self, rule: ContractRule, factors: Sequence[TensorSpec], sums: TensorSpec) -> bool:
        """Whether a library computes a product where it is installed: nothing but a bias and a rounding is done to its
        sums then."""
        if not self.targets.may_multiply_by_library(sums.device):
            return False
        kernel = bare_kernel(rule, factors, sums)
        contract, store = kernel.instructions()
        assert isinstance(contract, Contract) and isinstance(store, Store)
        return library_product(contract, kernel, store.buffer, sums.dtype, store.index) is not None

    def _cycles_of(self, key: tuple[Any, ...], kernel: Callable[[], Kernel]) -> float | str:
        """The target's estimate for a kernel, cached, because layers of a model repeat. The first element of `key` is
        the device."""
        cycles = self._cycles.get(key)
        if cycles is None:
            cycles = self._cycles[key] = self.targets.contraction_cycles(key[0], kernel())
        return cycles


def _sharing(kernel: Kernel) -> int:
    """Queries of all heads that share keys."""
    sizes = {axis.name: hint(axis.size) for axis in kernel.rows}
    return sizes["r"] * sizes["i"]


def _conversion_cycles(call: ProductCall, factors: Sequence[TensorSpec]) -> float:
    """What it takes to write elements that the library needs as floats, while a kernel reads them directly. Values
    shared by several calls count by their share."""
    total = 0.0
    for node, read, factor in zip((call.left, call.right), call.rule.factors, factors[:2], strict=True):
        if tensor_spec(node).dtype is not factor.dtype:
            while node.op == "call_function" and len(node.users) == 1 and _is_view(node):
                node = node.all_input_nodes[0]
            cycles = in_use().conversion if read.quantized is None else CYCLES_TO_DEQUANTIZE
            total += hint(tensor_spec(node).numel) * cycles / max(1, len(node.users))
    return total


def _is_view(node: fx.Node) -> bool:
    return isinstance(record_of(node.target).lowering, View)


MOST_A_CYCLE = 32  # multiplications that any library does on a CPU
CYCLES_TO_DEQUANTIZE = 5.0  # a weight that is written as a float and read again: measured 3 to 7 with AVX-512
LEAST = 1 << 16  # multiplications: fewer take less than has to be saved, on any processor
MANY_KEYS = 1024  # which flash attention goes through faster, measured on an H200: it has no masks
FEW_QUERIES = 4  # of a head on a GPU, whose keys are read once for all of them
MOST_SHARING = 8  # queries and heads for which keys are read once
LEAST_ATTENTION = 30_000  # and of an attention, which takes a tenth of a second to be compiled
LEAST_SAVED, LEAST_PART = 5_000, 0.03  # what has to be saved, at least: the fit is off by some percent


def bare_kernel(rule: ContractRule, factors: Sequence[TensorSpec], sums: TensorSpec) -> Kernel:
    """The kernel of a product with nothing done to its sums."""
    shape, stride = sums.shape, sums.stride
    outside_in = sorted((dim for dim in range(len(shape)) if shape[dim] != 1), key=lambda dim: -stride[dim])
    cols = rule.cols(shape, stride)
    names = {dim: f"{'j' if stride[dim] < cols else 'i'}{number}" for number, dim in enumerate(outside_in)}
    axes = tuple(Axis(f"k{number}", size) for number, size in enumerate(rule.axes))

    def index(steps: Shape, along: Shape, offset: Size) -> Index:
        terms = [(names[dim], steps[dim]) for dim in outside_in if steps[dim]]
        terms += [(axis.name, step) for axis, step in zip(axes, along, strict=True) if step]
        return Index(tuple(terms), offset)

    names_of = {id(read): f"in{number}" for number, read in enumerate(rule.reads)}

    def element(read: FactorRead) -> Element:
        return Element(names_of[id(read)], index(read.stride, read.along, read.offset))

    def factor(read: FactorRead) -> Factor:
        bounds = tuple((index(each.stride, each.along, each.offset), each.extent) for each in read.bounds)
        at, quantized = element(read), None
        if read.quantized is not None:
            zero, low = (None if each is None else element(each) for each in (read.quantized.zero, read.quantized.low))
            quantized = Quantized(read.quantized.kind, element(read.quantized.scale), zero, low, read.quantized.offset)
        return Factor(at.buffer, at.index, bounds, quantized)

    buffers = [
        Buffer(name, spec.dtype, span(spec.shape, spec.stride), Role.INPUT)
        for name, spec in zip(names_of.values(), factors, strict=True)
    ]
    buffers.append(Buffer("sums", sums.dtype, span(shape, stride), Role.OUTPUT))
    contract = Contract("p", axes, factor(rule.left), factor(rule.right), sums.dtype)
    store = Store("sums", index(stride, (0,) * len(axes), 0), "p")
    rows, inner = (
        tuple(Axis(names[dim], shape[dim]) for dim in outside_in if (stride[dim] < cols) is within)
        for within in (False, True)
    )
    return Kernel("product", rows, inner, tuple(buffers), (Stage(True, (contract, store)),))
