"""A chip as a device of PyTorch's: tensors, copies, views, writes in place, files, printing, random numbers, AMP."""

import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.chips import device_named
from smelt.device.chip import MOST_METHODS, methods

Program = Callable[[str], torch.Tensor]


def x(device: str, *shape: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(*(shape or (4, 6))).to(device)


def in_place(device: str) -> torch.Tensor:
    found = x(device)
    found[1:3] = 7
    found[:, ::2].mul_(3)
    found.t()[0].add_(found.t()[1])
    return found.relu_()


def views_of_views(device: str) -> torch.Tensor:
    whole = torch.arange(4096, dtype=torch.uint8).to(device)
    begins = (0, 512, 1024)
    parts = [whole[first : first + 512].view(torch.int32).as_strided((3,), (2,), first // 4) for first in begins]
    rows = [row[1:3] for row in x(device)]
    return torch.stack([*rows, *(part[:2].float() for part in parts)])


def overlapping(device: str) -> torch.Tensor:
    found = x(device, 20)
    found[1:].copy_(found[:-1].clone())
    return found.mul_(found)


def out(device: str) -> torch.Tensor:
    found = torch.empty(0, device=device)
    torch.add(x(device), 1, out=found)
    torch.exp(found, out=found)
    return found


def indexed(device: str) -> torch.Tensor:
    found = x(device)
    found[torch.tensor([0, 2], device=device)] = 0
    return found[torch.tensor([1, 0, 3], device=device), 1:]


def factories(device: str) -> torch.Tensor:
    made = [torch.zeros(3), torch.ones(3), torch.full((3,), 2.5), torch.arange(3.0), torch.eye(3)[0]]
    return torch.stack([each.to(device) for each in made]) + torch.linspace(0, 1, 3, device=device)


def gradients(device: str) -> torch.Tensor:
    a = x(device, 3, 4).requires_grad_()
    w = x(device, 4, 5).requires_grad_()
    loss = torch.nn.functional.gelu(a @ w).softmax(-1).square().sum()
    return torch.cat([each.flatten() for each in torch.autograd.grad(loss, [a, w])])


def double_backward(device: str) -> torch.Tensor:
    a = x(device, 5).requires_grad_()
    (first,) = torch.autograd.grad(a.sin().sum(), [a], create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), [a])
    return second


def integers(device: str) -> torch.Tensor:
    found = torch.arange(10, device=device)
    return (found * found).remainder(7)[found > 3].sum()


def autocast(device: str) -> torch.Tensor:
    with torch.autocast(device, dtype=torch.bfloat16):
        made = x(device) @ x(device, 6, 3)
        assert made.dtype is torch.bfloat16
    return made


def convolution(device: str) -> torch.Tensor:
    image = x(device, 2, 3, 8, 8).requires_grad_()
    weight = x(device, 4, 3, 3, 3).requires_grad_()
    made = torch.nn.functional.conv2d(image, weight, padding=1, stride=2)
    made.square().sum().backward()
    assert image.grad is not None and weight.grad is not None
    return torch.cat([each.flatten() for each in (made.detach(), image.grad, weight.grad)])


def normalized(device: str) -> torch.Tensor:
    norm = torch.nn.BatchNorm1d(6).to(device)
    made = norm(x(device))
    made.sum().backward()
    assert norm.running_mean is not None
    return torch.cat([made.detach().flatten(), norm.running_mean])


def embedded(device: str) -> torch.Tensor:
    table = x(device, 10, 4).requires_grad_()
    rows = torch.tensor([1, 3, 3, 9], device=device)
    (grad,) = torch.autograd.grad(torch.nn.functional.embedding(rows, table).square().sum(), [table])
    return grad


def attention(device: str) -> torch.Tensor:
    q = x(device, 2, 2, 5, 8).requires_grad_()
    made = torch.nn.functional.scaled_dot_product_attention(q, q * 2, q * 3, is_causal=True)
    (grad,) = torch.autograd.grad(made.square().sum(), [q])
    return grad


PROGRAMS: list[Program] = [
    in_place, views_of_views, overlapping, out, indexed, factories, gradients, double_backward, integers, autocast,
    convolution, normalized, embedded, attention,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_gives_what_the_host_gives(program: Program) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)
        found = program("sim")
    assert found.device == torch.device("sim", 0)
    wanted = program("cpu")
    assert found.stride() == wanted.stride() or program is attention  # which the host has an operator for
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-5, atol=1e-5)


def test_random_numbers_are_the_hosts() -> None:
    torch.manual_seed(3)
    found = [torch.randn(4, device="sim"), torch.rand(5, device="sim"), torch.randperm(6, device="sim")]
    torch.manual_seed(3)
    wanted = [torch.randn(4), torch.rand(5), torch.randperm(6)]
    assert all(torch.equal(one.cpu(), other) for one, other in zip(found, wanted, strict=True))
    generator = torch.Generator().manual_seed(1)
    drawn = torch.empty(3, device="sim").normal_(generator=generator)
    assert torch.equal(drawn.cpu(), torch.empty(3).normal_(generator=torch.Generator().manual_seed(1)))


def test_files_have_the_numbers_and_the_device() -> None:
    tensor, file = x("sim"), io.BytesIO()
    torch.save({"x": tensor, "view": tensor[1]}, file)
    file.seek(0)
    there = torch.load(file)
    assert there["x"].device.type == "sim" and torch.equal(there["x"].cpu(), x("cpu"))
    there["view"].zero_()
    assert not there["x"][1].any()
    file.seek(0)
    assert torch.equal(torch.load(file, map_location="cpu")["x"], x("cpu"))


def test_a_tensor_prints_its_numbers_by_one_copy() -> None:
    found = torch.arange(3.0, device="sim")
    before = smelt.counters["chip_copies_out"]
    assert repr(found) == "tensor([0., 1., 2.], device='sim:0')"
    assert smelt.counters["chip_copies_out"] == before + 1


def test_pytorch_knows_the_device() -> None:
    current: Any = torch.accelerator.current_accelerator()
    assert current.type == "sim" and torch.accelerator.device_count() == 1
    module: Any = torch.get_device_module("sim")
    module.synchronize()
    held = torch.empty(1000, device="sim")
    assert module.memory_allocated() == 4000 == held.nbytes


def test_a_module_keeps_its_parameters_when_it_moves() -> None:
    layer = torch.nn.Linear(3, 3)
    weight = layer.weight
    assert layer.to("sim").weight is weight and weight.device.type == "sim"


def test_mixing_devices_is_pytorchs_error() -> None:
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        x("sim") + x("cpu")


def test_an_index_out_of_range_is_an_error() -> None:
    with pytest.raises(IndexError):
        x("sim")[torch.tensor([5], device="sim")].cpu()


def test_sizes_and_numbers_are_operands_of_a_kernel() -> None:
    for size in (5, 6, 7):
        torch.testing.assert_close((x("sim", size, 3) * 0.25 * size).cpu(), x("cpu", size, 3) * 0.25 * size)
    before = smelt.counters["kernels_built"], smelt.counters["chip_calls"]
    torch.testing.assert_close((x("sim", 9, 4) * 0.75).cpu(), x("cpu", 9, 4) * 0.75)
    assert (smelt.counters["kernels_built"], smelt.counters["chip_calls"]) == before


def test_filling_needs_no_host() -> None:
    before = smelt.counters["chip_fallbacks"]
    found = x("sim")
    found[1].zero_()
    found[2].fill_(3)
    assert not found[1].any() and smelt.counters["chip_fallbacks"] == before


def test_what_has_no_kernel_is_told_once_counted_or_refused() -> None:
    matrix = torch.eye(3, device="sim") * 2
    before = smelt.counters["chip_fallbacks"]
    with pytest.warns(smelt.SmeltWarning, match=r"linalg_eigvals.* is computed by the host, which copies \d+ bytes"):
        torch.linalg.eigvals(matrix)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = torch.linalg.eigvals(matrix)
    assert smelt.counters["chip_fallbacks"] == before + 2
    assert torch.equal(found.cpu(), torch.full((3,), 2.0 + 0j))
    smelt.config.chip_fallback = False
    try:
        with pytest.raises(smelt.SmeltError, match=r"SM072: aten._linalg_eigvals"):
            torch.linalg.eigvals(matrix)
    finally:
        smelt.config.chip_fallback = True


def test_the_protocol_stays_small() -> None:
    assert len(methods()) <= MOST_METHODS == 20


def test_memory_is_counted_and_given_back() -> None:
    before = device_named("sim").allocations
    held = [torch.empty(10, device="sim") for _ in range(3)]
    assert device_named("sim").allocations == before + 3
    held.clear()
    assert device_named("sim").allocations == before


def test_a_process_has_one_such_device() -> None:
    with pytest.raises(smelt.SmeltError, match=r"SM070.*one device of that kind, and it is 'sim' already"):
        smelt.register_chip("other", device_named("sim").chip)
    with pytest.raises(smelt.SmeltError, match="object has no describe, allocate"):
        smelt.register_chip("nothing", object())  # type: ignore[arg-type]
