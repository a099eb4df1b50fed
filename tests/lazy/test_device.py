"""What people do with a device, on the lazy one: the answers of the CPU."""

import copy
import io
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import smelt
from smelt.base.options import Options
from smelt.pipeline.cache.keys import environment_key


def _write_through_views(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[0] = 7
    y[:, 1] += 1
    y.t()[2] = 5
    y.view(-1)[::2].mul_(2)
    return y


def _views_of_other_rounds(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    row, column = y[1], y.t()[1]
    float(y.sum())
    row.add_(1)
    float(row.sum())
    column.mul_(3)
    return y + row


def _new_data(x: torch.Tensor) -> torch.Tensor:
    y = torch.ones_like(x)
    y.data = x.t()
    return y + 1


def _out(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    torch.add(x, 1, out=y)
    return y * 2


def _out_resized(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty(0, device=x.device)
    torch.add(x, 1, out=y)
    return y * 2


def _set(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty(0, device=x.device)
    y.set_(x.untyped_storage(), 1, (2, 2), (3, 1))
    return y + 1


def _mean_in_place(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y -= y.mean()
    y.clamp_(min=0)
    return y.t_().squeeze_().unsqueeze_(0)


def _write_through_lists(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.split(2, dim=1)[0].add_(1)
    y.unbind(1)[2].mul_(2)
    y.chunk(2)[1].sub_(3)
    return y


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "writes through views": _write_through_views,
    "views of other rounds": _views_of_other_rounds,
    "writes through lists of views": _write_through_lists,
    "new data": _new_data,
    "out": _out,
    "out resized": _out_resized,
    "set_": _set,
    "in place": _mean_in_place,
    "mask": lambda x: x[x > 2],
    "where": lambda x: torch.where(x > 2),
    "unique": torch.unique,
    "sort": lambda x: torch.sort(x, descending=True),
    "topk": lambda x: x.topk(2),
    "indices": lambda x: x[torch.tensor([1, 0])],
    "index of the device": lambda x: x[:, torch.tensor([2, 0], device=x.device)],
    "index_put": lambda x: x.index_put((torch.tensor([0], device=x.device),), torch.tensor(9.0, device=x.device)),
    "number of the host": lambda x: x * torch.tensor(2.0),
    "split": lambda x: torch.split(x, 2, dim=1),
    "unbind": lambda x: [row * 2 for row in x],
    "copy of a number": lambda x: x.clone().copy_(2.5),  # type: ignore[arg-type]
    "cat": lambda x: torch.cat([x, x + 1]),
    "conj": lambda x: torch.complex(x, x + 1).conj().t() + 1,
    "conj of a product": lambda x: torch.complex(x, x + 1).conj() @ torch.complex(x, x).t(),
    "into conj": lambda x: torch.complex(x, x).conj().copy_(torch.complex(x, x + 1)),
    "imag of conj": lambda x: torch.complex(x, x + 1).conj().imag + 1,
    "view_as_real": lambda x: torch.view_as_real(torch.complex(x, x)).sum(-1),
    "other dtype": lambda x: x.view(torch.int32) + 1,
    "double": lambda x: x.double() / 3,
    "half": lambda x: x.half() + 1,
    "arange": lambda x: x + torch.arange(3, device=x.device),
    "linspace": lambda x: torch.linspace(0, 1, 5, device=x.device),
    "full": lambda x: torch.full((2,), 3, device=x.device),
    "eye": lambda x: torch.eye(3, device=x.device) @ x.t(),
    "like, on the host": lambda x: torch.ones_like(x, device="cpu") + x.new_full((3,), 2.0, device="cpu"),
    "new_zeros": lambda x: x.new_zeros(3) + 1,
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "svd": lambda x: torch.linalg.svdvals(x),
    "convolution": lambda x: nn.functional.conv1d(x[None], torch.ones(1, 2, 2, device=x.device)),
    "attention": lambda x: nn.functional.scaled_dot_product_attention(x[None], x[None], x[None]),
    "softmax": lambda x: x.softmax(-1).log_softmax(0),
    "empty": lambda x: x[:0].sum(),
    "roll": lambda x: torch.roll(x, 1, 1).flip(0),
    "pad": lambda x: nn.functional.pad(x, (1, 1), value=2.0),
    "resize": lambda x: x.clone().resize_(2, 2),
    "bool": lambda x: bool((x > 1).any()),
    "equal": lambda x: torch.equal(x, x + 0),
    "tolist": lambda x: x.tolist(),
    "format": lambda x: f"{x.sum():.3f}",
    "numpy": lambda x: x.numpy(force=True).tolist(),
    "contains": lambda x: 2.0 in x,
    "deepcopy": lambda x: copy.deepcopy({"a": x})["a"] + 1,
    "copy": lambda x: copy.copy(x) + 1,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "random": lambda x: (torch.manual_seed(4), torch.rand_like(x), torch.randint(0, 9, (4,), device=x.device))[1:],
    "normal": lambda x: (torch.manual_seed(4), x.clone().normal_(), torch.randperm(5, device=x.device))[1:],
    "multinomial": lambda x: (torch.manual_seed(4), torch.multinomial(x + 1, 2))[1],
    "bernoulli": lambda x: (torch.manual_seed(4), torch.bernoulli(x / 10))[1],
}


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    return type(value)(map(plain, value)) if isinstance(value, tuple | list) else value


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    wanted = plain(PROGRAMS[name](x.clone()))
    found = plain(PROGRAMS[name](x.to("lazy")))
    torch.testing.assert_close(found, wanted) if not isinstance(wanted, str | bool) else None
    assert isinstance(wanted, torch.Tensor | tuple | list) or found == wanted


def test_files_keep_what_shares_memory(tmp_path: Any) -> None:
    x = torch.arange(6.0, device="lazy").reshape(2, 3) + 1
    torch.save({"x": x, "row": x[1]}, tmp_path / "x.pt")
    found = torch.load(tmp_path / "x.pt")
    assert found["x"].device == x.device
    found["row"].zero_()
    assert found["x"].tolist() == [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]
    host = torch.load(tmp_path / "x.pt", map_location="cpu")
    assert host["x"].device.type == "cpu" and host["row"].tolist() == [4.0, 5.0, 6.0]
    torch.save(host, tmp_path / "host.pt")
    assert torch.load(tmp_path / "host.pt", map_location="lazy")["x"].device == x.device


def test_an_optimizer_that_was_there_before_the_move() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.to("lazy")
    before = model.weight.detach().cpu()
    model(torch.ones(1, 2, device="lazy")).sum().backward()
    optimizer.step()
    torch.testing.assert_close(model.weight.detach().cpu(), before - 1)


def test_models_move_and_keep_their_state() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    moved = copy.deepcopy(model).to("lazy")
    assert {parameter.device.type for parameter in moved.parameters()} == {"lazy"}
    x = torch.randn(5, 3)
    torch.testing.assert_close(moved(x.to("lazy")).cpu(), model(x))
    file = io.BytesIO()
    torch.save(moved.state_dict(), file)
    file.seek(0)
    again = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    again.load_state_dict(torch.load(file, map_location="cpu"))
    torch.testing.assert_close(again[1].running_mean, model[1].running_mean)
    assert torch.equal(again.state_dict()["0.weight"], model.state_dict()["0.weight"])


def test_a_default_device() -> None:
    torch.set_default_device("lazy")
    try:
        x = torch.ones(2) + torch.arange(2)
        assert (x.device.type, x.tolist()) == ("lazy", [1.0, 2.0])
    finally:
        torch.set_default_device(None)


def test_random_numbers_are_drawn_when_eager_draws_them() -> None:
    """Between draws of the host, from the same generator."""

    def draws(device: str) -> list[Any]:
        torch.manual_seed(7)
        first = torch.randn(3, device=device) * 2
        host = torch.rand(2)
        second = torch.empty(3, device=device).uniform_()
        return [first.cpu(), host, second.cpu(), torch.rand(1)]

    for mine, theirs in zip(draws("lazy"), draws("cpu"), strict=True):
        assert torch.equal(mine, theirs)


def test_the_host_may_change_what_was_copied() -> None:
    host, scale = torch.ones(3), torch.tensor(2.0)
    x = host.to("lazy")
    y = x * scale
    host.zero_()
    scale.zero_()
    assert y.tolist() == [2.0, 2.0, 2.0]
    out = y.numpy(force=True)
    y.add_(1)
    assert y.tolist() == [3.0, 3.0, 3.0]
    assert numpy.array_equal(out, numpy.full(3, 2.0))


def test_the_accelerator_is_ours() -> None:
    assert torch.accelerator.is_available()
    assert torch.accelerator.device_count() == 1
    torch.lazy.synchronize()  # type: ignore[attr-defined]
    assert torch.lazy.current_device() == 0  # type: ignore[attr-defined]


def test_a_new_number_is_an_operand() -> None:
    x = torch.ones(4, device="lazy")
    runs = smelt.lazy.explain().run_count
    for number in range(6):
        assert (x * (number + 0.5)).tolist() == [number + 0.5] * 4
    found = smelt.lazy.explain()
    assert [run.how for run in found.runs[runs - found.run_count :]] == ["compiled", "compiled", *["cached"] * 4]


@pytest.mark.parametrize("number", [0.0, -0.0, float("nan"), float("inf"), True, 1, 1.0])
def test_numbers_are_told_apart(number: Any) -> None:
    x, host = torch.ones(2, device="lazy"), torch.ones(2)
    for each in (0.0, number, -0.0, 2):
        torch.testing.assert_close((x * each).cpu(), host * each, equal_nan=True)
        assert torch.equal(torch.signbit(x * each).cpu(), torch.signbit(host * each))


def test_other_modules_are_converted_as_before() -> None:
    """Swapping is for what moves to this device alone: it refuses parameters that somebody refers to."""
    layer = nn.Linear(3, 3)
    reference = weakref.ref(layer.weight)
    before = layer.weight
    layer.to(torch.float64)
    assert reference() is before is layer.weight and not torch.__future__.get_swap_module_params_on_conversion()


def test_compiled_steps_do_not_meet_what_ends_recordings() -> None:
    parameter = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    parameter.grad = torch.ones(3)
    smelt.compile(optimizer.step, fullgraph=True)()
    assert parameter.tolist() == [0.5] * 3


def test_graphs_of_other_devices_are_kept_on_disk() -> None:
    """What the device registers replaces none of PyTorch's operators that graphs are made of."""
    assert environment_key(Options())
