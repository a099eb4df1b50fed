"""`torch.compile` and `nn.DataParallel` on a chip: the first is refused in plain words, the second has one device."""

import pytest
import torch
from torch import nn

import smelt


def test_torch_compile_is_refused_and_names_what_compiles() -> None:
    model, x = nn.Linear(4, 3).to("sim"), torch.randn(2, 4).to("sim")
    with pytest.raises(Exception, match=r"SM070: torch.compile generates no code for the device[\s\S]*smelt.compile"):
        torch.compile(model)(x)
    plain = torch.compile(model, backend="eager")(x)
    assert torch.equal(plain.cpu(), model(x).cpu())
    torch._dynamo.reset()


def test_the_hosts_tensors_are_still_compiled_by_it() -> None:
    found = torch.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(2))
    assert torch.equal(found, torch.full((2,), 2.0))
    torch._dynamo.reset()


def test_data_parallel_runs_on_the_one_device() -> None:
    model, x = nn.Linear(4, 3).to("sim"), torch.randn(2, 4)
    parallel = nn.DataParallel(model)
    found = parallel(x)
    assert found.device.type == "sim"
    torch.testing.assert_close(found.cpu(), model(x.to("sim")).cpu())
    found.sum().backward()
    assert model.weight.grad is not None
    with pytest.raises(smelt.SmeltError, match="one device, and not 2"):
        nn.DataParallel(model, device_ids=[0, 1])(x)
