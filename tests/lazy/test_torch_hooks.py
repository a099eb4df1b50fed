"""`torch.compile`, `torch.export`, fake tensors and `nn.DataParallel` on lazy tensors: they work, or say what does."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import smelt
from tests.processes import run


@pytest.fixture(autouse=True)
def _forget_compiled() -> None:
    torch._dynamo.reset()


# In a process of its own: an error that PyTorch's compiler meets leaves its frame hook behind.
REFUSED = """
import torch, smelt
smelt.lazy.enable()
try:
    torch.compile(torch.nn.Linear(4, 3).to("lazy"))(torch.randn(2, 4).to("lazy"))
except Exception as error:
    print(error)
"""


def test_torch_compile_is_refused_and_names_what_compiles() -> None:
    done = run(REFUSED)
    assert "SM070: torch.compile generates no code for the device 'lazy'" in done.stdout, done


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torch_compile_runs_operator_by_operator(backend: str) -> None:
    model, x = nn.Linear(4, 3).to("lazy"), torch.randn(2, 4).to("lazy")
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    found = compiled(x)
    torch.testing.assert_close(found.cpu(), model(x).cpu())
    found.sum().backward()
    assert model.weight.grad is not None
    torch.testing.assert_close(model.weight.grad.cpu(), x.cpu().sum(0).expand(3, 4))


def test_torch_compile_does_not_trace_what_answers_operators() -> None:
    """Between two graphs its frame hook sees the frames of our kernels."""

    def branches(x: torch.Tensor) -> torch.Tensor:
        y = x.relu() + 1
        torch._dynamo.graph_break()
        return (y * 2).sum() + y[0, 0].item()

    x = torch.randn(2, 4)
    found = torch.compile(branches, backend="eager")(x.to("lazy"))
    torch.testing.assert_close(found.cpu(), branches(x))


def test_torch_export() -> None:
    model, x = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).to("lazy"), torch.randn(2, 4).to("lazy")
    program = torch.export.export(model.eval(), (x,))
    torch.testing.assert_close(program.module()(x).cpu(), model(x).cpu())
    assert program.graph_signature.buffers == ("1.running_mean", "1.running_var", "1.num_batches_tracked")


def test_fake_tensors_of_lazy_tensors() -> None:
    x, weight = torch.randn(4, 6, device="lazy").t(), nn.Parameter(torch.randn(3, device="lazy"))
    mode = FakeTensorMode()
    fake, parameter = mode.from_tensor(x), mode.from_tensor(weight)
    assert (fake.shape, fake.stride(), fake.device.type) == (x.shape, x.stride(), "lazy")
    assert isinstance(parameter, nn.Parameter) and parameter.requires_grad
    with mode:
        assert (fake @ fake.t()).shape == (6, 6)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(mode: str) -> None:
    x = torch.randn(3, device="lazy")
    traced = make_fx(lambda x: x.relu() + 1, tracing_mode=mode)(x)
    torch.testing.assert_close(traced(x).cpu(), x.cpu().relu() + 1)


def test_data_parallel_runs_on_the_one_device() -> None:
    model, x = nn.Linear(4, 3).to("lazy"), torch.randn(2, 4)
    found = nn.DataParallel(model)(x)
    assert found.device.type == "lazy"
    torch.testing.assert_close(found.cpu(), model(x.to("lazy")).cpu())
    found.sum().backward()
    assert model.weight.grad is not None
    with pytest.raises(smelt.SmeltError, match="one device, and not 2"):
        nn.DataParallel(model, device_ids=[0, 1])(x)
