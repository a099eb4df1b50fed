"""Numbers that are given at each call, as operands of kernels."""

import torch

import smelt


def test_a_float_keeps_its_bits_where_only_the_dtype_says_what_it_becomes() -> None:
    """It was rounded to float32 first, the dtype that a float of Python's has without a tensor beside it."""

    def fn(x: torch.Tensor, number: float) -> torch.Tensor:
        return torch.where(x > 0.5, x, number)

    x = torch.rand(7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    compiled = smelt.compile(fn, fullgraph=True)
    for number in (0.3, 0.7, 0.1, 1 / 3):
        assert torch.equal(compiled(x, number), fn(x, number))
    assert smelt.counters["recompiles"] == 1
