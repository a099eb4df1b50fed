"""Which products are kernels of our own, and which are calls of the library.

    ProductChoice("own", targets).read(node, layout_of)   →   ProductCall, or why the library computes it

With the option `products` at "own", every product is a kernel that the target can make one for; at "library" none is.
"""

import torch
from torch import fx

from smelt.base.fast_dataclass import dataclass
from smelt.fuse.lowering.matrix_products import LayoutOf, ProductCall, read_product
from smelt.fuse.target_choice import TargetChoice
from smelt.ir.tensorspec import TensorSpec, tensor_spec

LIBRARY = "is left to the library by the option `products`"


@dataclass(frozen=True, slots=True)
class ProductChoice:
    """The choice for the products of one program."""

    wanted: str
    targets: TargetChoice

    def read(self, node: fx.Node, layout_of: LayoutOf) -> ProductCall | str | None:
        """What a kernel is to multiply, or why none does; None for what is no product, or no matter of choice."""
        if self.wanted != "own":
            return None
        call = read_product(node, layout_of)
        if not isinstance(call, ProductCall):
            return call
        return self._why_not(tensor_spec(node)) or call

    def _why_not(self, spec: TensorSpec) -> str | None:
        if not self.targets.limits_of(spec.device).contractions:
            return f"multiplies, and kernels for {self.targets.name_of(spec.device)} cannot hold contractions"
        if torch.get_float32_matmul_precision() != "highest" and spec.dtype is torch.float32:
            return "multiplies, and the library is allowed to do so with less precision"
        return None
