"""Sizes: the arithmetic every stage shares, held against PyTorch."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from smelt.symbolic.shapes import contiguous_stride, product

shapes = st.lists(st.integers(0, 7), max_size=5).map(tuple)


@given(shapes)
def test_product_is_the_number_of_elements(shape: tuple[int, ...]) -> None:
    assert product(shape) == torch.empty(shape, device="meta").numel()


@given(shapes)
def test_strides_are_those_pytorch_gives(shape: tuple[int, ...]) -> None:
    assert contiguous_stride(shape) == torch.empty(shape, device="meta").stride()
