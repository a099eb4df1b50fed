"""`LibraryCall`: a product as a launch of a kernel knows it, with the places of its operands."""

from smelt.base.fast_dataclass import dataclass
from smelt.ir.products.library_product import LibraryProduct
from smelt.symbolic.shapes import Size


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """A product that a library may compute instead of so many grids. `places`: of each operand of it, the buffer by its
    place among the kernel's, the workspace coming last, and the first byte there."""

    product: LibraryProduct
    grids: int
    places: tuple[tuple[int, Size], ...]

    @property
    def numbers(self) -> tuple[Size, ...]:
        """All that may vary: the sizes, then of each operand its first byte and its strides."""
        numbers = [self.product.rows, self.product.cols, self.product.terms, *self.product.batch]
        for operand, (_, first) in zip(self.product.operands, self.places, strict=True):
            numbers += [first, operand.row, operand.col, *operand.batch]
        return tuple(numbers)
