"""Lazy tensors that run on a GPU, as far as it can be seen without one: which stream waits for which, what autocast
does there, and that a recorded training step is compiled into kernels of a GPU. `tests/gpu/test_lazy.py` runs them."""

import sys
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import smelt
from smelt.dispatch.autocast import POLICIES
from smelt.lazy.real_device import CudaDevice
from tests.processes import run


class Stream:
    """Notes who waits for whom."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def wait_stream(self, other: "Stream") -> None:
        self.log.append(f"{self.name} waits for {other.name}")


class Cuda:
    """As much of `torch.cuda` as is asked of it, with two GPUs."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.default = Stream("default", self.log)
        self.current = self.default
        self.number = 0

    def default_stream(self, device: torch.device) -> Stream:
        return self.default

    def current_stream(self, device: torch.device) -> Stream:
        return self.current

    def current_device(self) -> int:
        return self.number

    @contextmanager
    def device(self, device: torch.device) -> Any:
        before, self.number = self.number, device.index
        try:
            yield
        finally:
            self.number = before

    @contextmanager
    def stream(self, stream: Stream) -> Any:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before


def test_nothing_waits_on_the_default_stream() -> None:
    cuda = Cuda()
    real = CudaDevice(torch.device("cuda", 0), cuda)
    with real.working():
        assert cuda.current is cuda.default
    assert cuda.log == []


def test_another_stream_of_the_program_waits_and_is_waited_for() -> None:
    cuda = Cuda()
    real = CudaDevice(torch.device("cuda", 0), cuda)
    mine = cuda.current = Stream("mine", cuda.log)
    with pytest.raises(KeyError), real.working():
        assert cuda.current is cuda.default
        cuda.log.append("work")
        with real.working():  # what it calls is at work already
            pass
        raise KeyError
    assert cuda.current is mine
    assert cuda.log == ["default waits for mine", "work", "mine waits for default"]


def test_the_gpu_is_the_current_one_while_it_works() -> None:
    cuda = Cuda()
    real = CudaDevice(torch.device("cuda", 1), cuda)
    with real.working():
        assert cuda.current_device() == 1
    assert cuda.current_device() == 0 and cuda.log == []
    assert real.is_elsewhere(torch.device("cpu")) and real.is_elsewhere(torch.device("cuda", 0))
    assert not real.is_elsewhere(torch.device("cuda", 1))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_reason_is_told() -> None:
    with pytest.raises(smelt.SmeltError, match="SM070: lazy tensors cannot run on cuda: PyTorch "):
        smelt.lazy.enable(on="cuda")


@pytest.mark.parametrize("name, reason", [("meta", 'run on "cpu" or "cuda"'), ("no such", "Expected one of|Invalid")])
def test_other_devices_are_refused(name: str, reason: str) -> None:
    with pytest.raises(smelt.SmeltError, match=f"SM070: lazy tensors cannot run on .*{reason}"):
        smelt.lazy.enable(on=name)


def test_enabling_again_without_a_device_keeps_it() -> None:
    assert smelt.lazy.enable() == smelt.lazy.enable("cpu") == torch.device("lazy", 0)


def test_policies_of_autocast_are_of_operators_that_pytorch_casts_there() -> None:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for policies in POLICIES.values():
        cast = {name for name in torch._C._dispatch_get_all_op_names() if has(name, policies.key)}
        bases = {name.partition("::")[2].partition(".")[0] for name in cast}
        named = policies.narrow | policies.promoted | policies.wide_results | policies.refused
        assert named <= bases, named - bases


# A training step is recorded for cuda:0, which is not there: tensors of the meta device stand for its memory. It is not
# run, but compiled for a GPU; where numbers depend on the device, fake tensors on cuda:0 say so.
COMPILED = """
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt import lazy
from smelt.base.options import Options
from smelt.lazy import enabling
from smelt.lazy.paths.graph import build
from smelt.lazy.real_device import RealDevice
from smelt.autograd.joint.functional_trace import interpret
from smelt.ir.program import Launch
from smelt.ir.tensorspec import spec_of
from tests.absent_device.ahead import compile_ahead

owner = enabling.make_owner("lazy", RealDevice(torch.device("cuda", 0)), lambda traced: None)
lazy._owner = owner
wrap = lambda tensor: owner.recorder.wrap(tensor.to("meta"))
model = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 8))
for module in model.modules():
    for name, each in list(module._parameters.items()):
        if each is not None:
            module._parameters[name] = nn.Parameter(wrap(each.detach()))
x, y = wrap(torch.randn(16, 32)), wrap(torch.randint(0, 8, (16,)))
momentum = [wrap(torch.zeros_like(each, device="cpu")) for each in model.parameters()]
loss = F.cross_entropy(model(x), y)
loss.backward()
with torch.no_grad():
    for each, kept in zip(model.parameters(), momentum, strict=True):
        kept.mul_(0.9).add_(each.grad)
        each.sub_(kept, alpha=0.1)
now = owner.recorder.now
path = now.step.path()
print("recorded", sum(step.operator is not None for step in path) > 30, dict(owner.timeline.fallbacks))
live = [value for value, _ in now.alive()]
traced = build(path, live, now.numbers, {}, torch.device("cuda", 0))
inputs = [spec_of(node) for node in traced.graph.nodes if node.op == "placeholder"]


def call(*given):
    return interpret(traced, list(given), {})


found = compile_ahead(call, inputs, Options(target="sm_90", check_specs=True))
launches = [step for program in found.programs for step in program.steps if isinstance(step, Launch)]
print("kernels", bool(launches), {step.target for step in launches})
print("memory", {str(buffer.spec.device) for program in found.programs for buffer in program.buffers})
owner.recorder.forget()
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_recorded_training_step_is_compiled_for_a_gpu() -> None:
    done = run(COMPILED)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["recorded True {}", "kernels True {'sm_90'}", "memory {'cuda:0'}"]


# As a block on a GPU does it: a device without a name, beside which PyTorch sees no accelerator of ours.
UNNAMED = """
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt import lazy
from smelt.dispatch.device import UNNAMED
from smelt.lazy import enabling
from smelt.lazy.real_device import RealDevice

assert lazy._make_compiler is not None
lazy._owner = enabling.make_owner(UNNAMED, RealDevice(torch.device("cpu")), lazy._make_compiler())

def losses():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 2))
    optimizer, found = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(torch.randn(4, 8)), torch.randint(0, 2, (4,)))
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return torch.stack(found)

eager = losses()
with smelt.lazy():
    mine = losses()
torch.testing.assert_close(mine, eager)
print(torch.accelerator.current_accelerator(), smelt.lazy.explain().run_count >= 3)
try:
    smelt.lazy.enable()
except smelt.SmeltError as error:
    print(str(error).splitlines()[0])
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="the accelerator is a GPU there")
def test_a_block_without_the_device_leaves_pytorch_its_accelerator() -> None:
    done = run(UNNAMED)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "None True"
    assert second.startswith("SM070: the device 'lazy' cannot be made") and second.endswith("on a GPU have it already")


LEFT_TO_THE_GPU = """
from smelt import _native

smelt.lazy.enable(background=False)
assert torch.accelerator.current_accelerator().type == "lazy"
assert _native.leave_accelerator()
assert torch.accelerator.current_accelerator() is None, "what PyTorch finds beside our device: a GPU, or nothing here"
x = torch.ones(3, requires_grad=True)
y = torch.full((3,), 2.0, device="lazy", requires_grad=True)
moved = x.to("lazy")
(moved * y + moved + y * y).sum().backward()
assert y.device == torch.device("lazy", 0) and y.grad.tolist() == [5.0] * 3 and x.grad.tolist() == [3.0] * 3
"""


@pytest.mark.skipif(sys.platform != "linux", reason="libtorch's calls are redirected on Linux alone")
def test_the_device_is_no_accelerator_where_a_gpu_is_one() -> None:
    """`tests/gpu/test_lazy.py` has the GPU's own backward."""
    done = run(LEFT_TO_THE_GPU)
    assert done.returncode == 0, done.stderr
