"""`tensor.data = other` of what the graph computed: what the tensor was stays known to the tape."""

import torch

import smelt


def test_many_tensors_are_replaced() -> None:
    """The address of a tensor that nobody has any more is another's soon: that one was taken for the first."""

    def fn(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            for row in x:
                x = (x + row) / 2
                a = z + 0
                a.data = z * 2
        return x

    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(smelt.compile(fn, backend="eager", fullgraph=True)(x, x - 1), fn(x, x - 1))


def test_views_of_what_a_tensor_was() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = x + 1
        view = a[0]
        a.data = x * 2
        view.add_(5)
        a.mul_(3)
        return a, view, x

    x = torch.arange(6.0).reshape(2, 3)
    for mine, eager in zip(smelt.compile(fn, backend="eager")(x), fn(x), strict=True):
        assert torch.equal(mine, eager)
