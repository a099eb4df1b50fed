"""What PyTorch's autograd does round a compiled graph: checkpoints, in eager's own words and numbers."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import smelt


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_checkpoints_inside_and_outside_what_is_compiled(backend: str, reentrant: bool, inside: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)

    def part(x: torch.Tensor) -> torch.Tensor:
        return layer(x).relu().exp()

    def whole(x: torch.Tensor, inner: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        made: torch.Tensor = checkpoint(inner, x, use_reentrant=reentrant)
        return made.sin() * 2

    x = torch.randn(3, 4, requires_grad=True)
    if inside:
        mine = smelt.compile(lambda x: whole(x, part), backend=backend)(x)
    else:
        mine = whole(x, smelt.compile(part, backend=backend))
    eager = whole(x, part)
    torch.testing.assert_close(mine, eager)
    for one, other in zip(_gradients(mine, x, layer), _gradients(eager, x, layer), strict=True):
        torch.testing.assert_close(one, other)


def _gradients(out: torch.Tensor, x: torch.Tensor, layer: nn.Linear) -> list[torch.Tensor]:
    for tensor in (x, layer.weight, layer.bias):
        tensor.grad = None
    out.sum().backward()
    found = [tensor.grad for tensor in (x, layer.weight, layer.bias)]
    return [gradient for gradient in found if gradient is not None]


VERSION = tuple(map(int, torch.__version__.split(".")[:2]))

RESHAPED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "vector times matrix": lambda v, m: (v @ m).sin(),
    "linear of a vector": lambda v, m: nn.functional.linear(v, m.t()).relu(),
    "quantile": lambda v, m: torch.quantile(m, 0.3, dim=0) * v.sum(),
    "short Fourier transform": lambda v, m: torch.view_as_real(
        torch.stft(m.reshape(-1), 4, window=torch.ones(4), return_complex=True)
    ).square(),
}


@pytest.mark.parametrize("backend", ["aot_eager", "llvm"])
@pytest.mark.parametrize("name", RESHAPED)
def test_operators_that_reshape_in_place_within(name: str, backend: str) -> None:
    """Fake tensors did not follow it, and every product of a vector with a matrix broke the graph."""
    if name == "quantile" and VERSION < (2, 12):
        pytest.skip("PyTorch 2.11 looks at the fractions it is given first, which breaks the graph")
    torch.manual_seed(0)
    v, m = torch.randn(5, requires_grad=True), torch.randn(5, 8, requires_grad=True)
    function = RESHAPED[name]
    mine = smelt.compile(function, backend=backend, fullgraph=True)(v, m)
    eager = function(v, m)
    torch.testing.assert_close(mine, eager)
    found, expected = (torch.autograd.grad(out.sum(), (v, m), allow_unused=True) for out in (mine, eager))
    torch.testing.assert_close(found, expected)
