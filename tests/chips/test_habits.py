"""What people do with a device beside computing: copies, state dicts, loaders, pinned memory, AMP, processes."""

import copy
import io
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import smelt
from tests.processes import run_new


def test_deep_copies_share_what_was_shared() -> None:
    x = torch.arange(6.0, device="sim").view(2, 3)
    both, row = copy.deepcopy((x, x[1]))
    row.zero_()
    assert both.tolist() == [[0, 1, 2], [0, 0, 0]] and x[1].tolist() == [3, 4, 5]
    layer = nn.Linear(2, 2).to("sim")
    other = copy.deepcopy(layer)
    assert torch.equal(other.weight, layer.weight) and other.weight.device.type == "sim"
    assert other.weight.data_ptr() != layer.weight.data_ptr()


def test_pickles_and_clones_of_storages() -> None:
    x = torch.randn(4, device="sim")
    assert torch.equal(pickle.loads(pickle.dumps(x)).cpu(), x.cpu())
    assert x.untyped_storage().clone().nbytes() == 16


def test_state_dicts_go_both_ways() -> None:
    ours, hosts = nn.Linear(3, 2).to("sim"), nn.Linear(3, 2)
    hosts.load_state_dict(ours.state_dict())
    assert torch.equal(hosts.weight, ours.weight.cpu())
    ours.load_state_dict(nn.Linear(3, 2).state_dict())
    optimizer = torch.optim.AdamW(ours.parameters())
    ours(torch.ones(1, 3, device="sim")).sum().backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save({"model": ours.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    loaded = torch.load(file, map_location="sim")
    again = torch.optim.AdamW(ours.parameters())
    again.load_state_dict(loaded["optimizer"])
    assert again.state[ours.weight]["exp_avg"].device.type == "sim"


def test_a_loader_with_pinned_memory() -> None:
    loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=4, pin_memory=True)
    found = [batch.to("sim", non_blocking=True) for (batch,) in loader]
    assert torch.cat(found).tolist() == list(range(8))


def test_the_accelerator_is_the_chip() -> None:
    accelerator: Any = torch.accelerator
    assert accelerator.is_available() and accelerator.current_accelerator().type == "sim"
    assert accelerator.current_device_index() == 0
    x = torch.ones(1000, device="sim") * 2
    accelerator.synchronize()
    accelerator.empty_cache()
    assert float(x.sum()) == 2000 and accelerator.memory_allocated() >= 4000


def test_an_exception_of_a_hook_comes_out_of_the_backward() -> None:
    x = torch.ones(3, device="sim", requires_grad=True)
    y = x * 2

    def hook(gradient: torch.Tensor) -> None:
        raise ValueError("a hook")

    handle = y.register_hook(hook)
    with pytest.raises(ValueError, match="a hook"):
        y.sum().backward(retain_graph=True)
    handle.remove()
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2, 2, 2]


def test_streams_and_events() -> None:
    module: Any = torch.get_device_module("sim")
    start, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
    start.record()
    with module.stream(module.Stream()):
        torch.ones(10, device="sim").exp()
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) >= 0


def test_seeds_and_generators() -> None:
    module: Any = torch.get_device_module("sim")
    state = module.get_rng_state()
    first = torch.randn(3, device="sim")
    module.set_rng_state(state)
    assert torch.equal(torch.randn(3, device="sim").cpu(), first.cpu())
    with torch.random.fork_rng(device_type="sim"):
        torch.randn(3, device="sim")
    drawn = torch.randn(3, device="sim", generator=torch.Generator().manual_seed(5))
    assert torch.equal(drawn.cpu(), torch.randn(3, generator=torch.Generator().manual_seed(5)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_and_a_scaler(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to("sim")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("sim", init_scale=8.0)
    with torch.autocast("sim", dtype=dtype):
        found = model(torch.ones(3, 4, device="sim"))
        loss = nn.functional.mse_loss(found, torch.zeros(3, 2, device="sim"))
    assert found.dtype is dtype and loss.dtype is torch.float32
    weight = next(model.parameters())
    before = weight.detach().clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error", smelt.SmeltWarning)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 8.0 and not torch.equal(before, weight)
        before = weight.detach().clone()
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, torch.inf)
        scaler.scale(torch.ones(1, device="sim"))
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 4.0 and torch.equal(before, weight)


def test_a_scale_that_is_no_number_of_a_gradients_dtype_keeps_its_bits() -> None:
    generator = torch.Generator().manual_seed(0)
    grads = [torch.randn(300, generator=generator).to(dtype) for dtype in (torch.bfloat16, torch.float32)]
    found, scale = torch.zeros(1), torch.full((), 1 / 1003.0)
    there = [grad.to("sim") for grad in grads]
    torch._amp_foreach_non_finite_check_and_unscale_(there, found.to("sim"), scale.to("sim"))
    for each in grads:
        torch._amp_foreach_non_finite_check_and_unscale_([each], found, scale)
    for one, other in zip(there, grads, strict=True):
        assert torch.equal(one.cpu(), other)


def test_the_default_device_and_factories() -> None:
    torch.set_default_device("sim")
    try:
        made = [torch.zeros(2), torch.randn(2), torch.tensor([1.0]), torch.arange(3), nn.Linear(2, 2).weight]
    finally:
        torch.set_default_device(None)
    assert {each.device.type for each in made} == {"sim"}
    with torch.device("sim"):
        assert torch.ones(2).device.type == "sim"
    like = torch.rand_like(made[0])
    assert like.device.type == "sim" and made[0].new_ones(2).tolist() == [1, 1]


def test_what_is_said_of_a_tensor() -> None:
    x = torch.ones(2, device="sim")
    which: Any = x
    assert which.is_sim and not x.is_cuda and x.device.index == 0
    assert repr(nn.Parameter(x)).startswith("Parameter containing:\ntensor([1., 1.], device='sim:0'")
    assert f"{x[0]:.2f}" == "1.00" and list(x) and x.tolist() == [1, 1] and bool(x.all())
    with pytest.raises((TypeError, RuntimeError)):
        x.numpy()
    assert x.cpu().numpy().tolist() == [1, 1]


_PROCESSES = """
import sys
sys.path.insert(0, "plugins/sim")
import torch
import torch.multiprocessing as mp
import smelt
from smelt_sim import Sim

def work(numbers):
    return float((torch.tensor(numbers, device="sim") * 2).sum())

if __name__ == "__main__":
    smelt.register_chip("sim", Sim())
    here = torch.ones(3, device="sim") + 1
    with mp.get_context("fork").Pool(1) as pool:
        print(pool.apply(work, ([1.0, 2.0],)))
    print(float(here.sum()))
"""


def test_processes_that_are_forked_have_a_chip_too() -> None:
    done = run_new(_PROCESSES)
    assert done.stdout.split() == ["6.0", "6.0"], done


_FORKED = """
import sys
sys.path.insert(0, "plugins/sim")
import torch
import smelt
from smelt_sim import Sim
from torch.utils.data import DataLoader, TensorDataset

class Driver(Sim):
    survives_fork = False

smelt.register_chip("sim", Driver())
rows = torch.ones(4, 3, device="sim")
try:
    list(DataLoader(TensorDataset(rows), num_workers=1))
except RuntimeError as error:
    print("a forked process has no chip 'sim'" in str(error))
print(float(rows.sum()))
"""


def test_a_forked_process_is_told_that_it_has_no_driver() -> None:
    done = run_new(_FORKED)
    assert done.stdout.split() == ["True", "12.0"], done


def test_there_is_one_such_device() -> None:
    with pytest.raises(RuntimeError, match="one device of this kind"):
        torch.get_device_module("sim").set_device(1)
    for wrong in (lambda: torch.ones(1, device="sim:3"), lambda: torch.ones(1).to("sim:1")):
        with pytest.raises(RuntimeError, match="one device of this kind"):
            wrong()


def test_repeated_elements_are_not_written() -> None:
    x = torch.ones(2, device="sim")
    for write in (lambda: x.expand(3, 2).add_(1), lambda: x.expand(3, 2).copy_(torch.ones(3, 2, device="sim"))):
        with pytest.raises(RuntimeError, match="single memory location"):
            write()
    assert x.tolist() == [1, 1]


def test_storages_by_name() -> None:
    assert torch.UntypedStorage(8, device="sim").nbytes() == 8
    assert torch.UntypedStorage(8, device="cpu").nbytes() == 8 == torch.UntypedStorage(8).nbytes()


def test_errors_go_from_process_to_process() -> None:
    error = pickle.loads(pickle.dumps(smelt.SmeltError("SM070", "no", hint="why")))
    assert (error.code, error.hint, str(error)) == ("SM070", "why", "SM070: no\n  hint: why")
