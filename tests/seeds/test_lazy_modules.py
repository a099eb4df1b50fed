"""The guides on lazy modules: sizes are found at the first call, through the compiled model too."""

import pytest
import torch
from torch import nn

import smelt


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.LazyLinear(256), nn.ReLU(), nn.LazyLinear(128), nn.ReLU(), nn.LazyLinear(10))


def convolutional() -> nn.Sequential:
    return nn.Sequential(nn.LazyConv2d(64, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(10))


def check(compiled: nn.Module, x: torch.Tensor) -> None:
    """Right at once, right again, and after the first call captured whole."""
    plain = compiled._smelt_model  # type: ignore[attr-defined]
    first = compiled(x)
    torch.testing.assert_close(first, plain(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(compiled(x), plain(x), rtol=1e-4, atol=1e-5)
    before = smelt.counters["graph_breaks"]
    graphs = smelt.counters["graphs"]
    for _ in range(3):
        compiled(x)
    assert smelt.counters["graph_breaks"] == before
    assert smelt.counters["graphs"] == graphs
    assert smelt.explain(plain, fullgraph=True)(x).graph_count == 1


def test_linear_layers_find_their_sizes_at_the_first_call() -> None:
    model = mlp()
    x = torch.randn(32, 512)
    check(smelt.compile(model), x)
    assert model[0].weight.shape == (256, 512)
    assert type(model[0]) is nn.Linear


def test_one_lazy_layer_becomes_a_plain_one() -> None:
    lazy_linear = nn.LazyLinear(256)
    compiled = smelt.compile(lazy_linear)
    assert compiled(torch.randn(32, 512)).shape == (32, 256)
    assert type(lazy_linear) is nn.Linear
    assert (lazy_linear.in_features, lazy_linear.out_features) == (512, 256)
    assert isinstance(compiled, nn.Linear) and not isinstance(compiled, nn.LazyLinear)
    calls = smelt.counters["calls"]
    x = torch.randn(4, 512)
    torch.testing.assert_close(compiled(x), lazy_linear(x))
    assert smelt.counters["calls"] == calls + 1  # and it is compiled as before


def test_convolution_norm_and_linear_are_configured_together() -> None:
    model = convolutional().eval()
    check(smelt.compile(model), torch.randn(1, 3, 32, 32))
    assert model[0].weight.shape == (64, 3, 3, 3)
    assert model[1].num_features == 64
    assert model[3].in_features == 64 * 30 * 30


@pytest.mark.parametrize("make", [mlp, convolutional])
def test_the_first_call_starts_from_the_same_weights_as_eager(make: "type[nn.Sequential]") -> None:
    model = make()
    compiled = smelt.compile(make())
    x = torch.randn(2, 3, 8, 8)
    torch.manual_seed(1)
    expected = model(x)
    torch.manual_seed(1)
    torch.testing.assert_close(compiled(x), expected, rtol=1e-4, atol=1e-5)
    for have, want in zip(compiled.parameters(), model.parameters(), strict=True):
        assert torch.equal(have, want)


def test_gradients_flow_from_the_first_call_on() -> None:
    model = mlp()
    compiled = smelt.compile(model)
    x = torch.randn(4, 20)
    compiled(x).square().sum().backward()
    got = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    model(x).square().sum().backward()
    assert len(got) == 6
    for have, want in zip(got, model.parameters(), strict=True):
        torch.testing.assert_close(have, want.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (lambda: nn.LazyConv1d(4, 3), (2, 3, 9)),
        (lambda: nn.LazyConv3d(4, 3), (2, 3, 5, 5, 5)),
        (lambda: nn.LazyConvTranspose2d(4, 3), (2, 3, 5, 5)),
        (lambda: nn.LazyBatchNorm1d(), (4, 6)),
        (lambda: nn.LazyInstanceNorm2d(affine=True), (2, 3, 5, 5)),
    ],
    ids=["conv1d", "conv3d", "conv_transpose2d", "batch_norm1d", "instance_norm2d"],
)
def test_the_other_lazy_modules(module: "type[nn.Module]", shape: tuple[int, ...]) -> None:
    check(smelt.compile(module().eval()), torch.randn(shape))
