"""Compiling for a device that is not here: what PyTorch would do on it, down to kernels of its target."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from smelt.autograd.joint.functional_trace import CannotTrace
from smelt.base import events
from smelt.base.errors import SmeltError
from smelt.base.options import Options
from smelt.codegen.cpu.target import describe_host
from smelt.device import register, withdraw
from smelt.device.fusion_limits import Limits
from smelt.ir.program import Launch, Library, Operand, Place
from smelt.ir.tensorspec import TensorSpec
from tests.absent_device.ahead import Ahead, compile_ahead, spec_like
from tests.absent_device.fused_attention import capability
from tests.absent_device.stand_in import is_here
from tests.processes import COMPILER, run

aten = torch.ops.aten
CUDA = torch.device("cuda", 0)

pytestmark = pytest.mark.skipif(is_here(CUDA), reason="the device is here, and nothing stands for it")


@pytest.fixture(autouse=True)
def gpu() -> Iterator[str]:
    """A target for tensors on CUDA, on request. Its kernels are never run."""
    register(
        "gpu",
        lambda: replace(describe_host(), name="gpu"),
        limits=Limits(host_reads_flags=False),
        devices=("cuda",),
        on_request=True,
    )
    yield "gpu"
    withdraw("gpu")


def ahead(model: Callable[..., Any], *args: Any, target: str = "gpu") -> Ahead:
    return compile_ahead(model, args, Options(target=target, check_specs=True))


def called(found: Ahead) -> set[str]:
    """The library calls of all programs, by name."""
    steps = [step for program in found.programs for step in program.steps]
    return {step.op.overloadpacket.__name__ for step in steps if isinstance(step, Library)}


def targets(found: Ahead) -> set[str]:
    return {step.target for program in found.programs for step in program.steps if isinstance(step, Launch)}


def devices(found: Ahead) -> set[str]:
    return {str(buffer.spec.device) for program in found.programs for buffer in program.buffers}


class Block(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(64, 64)
        self.drop = nn.Dropout(0.1)
        self.to(dtype)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = (t.view(2, 16, 4, 16).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
        return x + self.drop(self.out(y.transpose(1, 2).reshape(2, 16, 64)))


WRITTEN_OUT = {"bmm", "baddbmm", "_softmax", "_safe_softmax", "bernoulli", "bernoulli_"}


_RMS_NORM = """
from dataclasses import replace
import torch
import torch.nn.functional as F
from smelt.base.options import Options
from smelt.ir.program import Library
from tests.absent_device.ahead import compile_ahead, spec_like

def described(x, normalized, weight, eps):
    outer = x.shape[: x.dim() - len(normalized)]
    wide = torch.float32 if x.dtype.itemsize == 2 else x.dtype
    kept = torch.empty((*outer, *(1 for _ in normalized)), dtype=wide, device=x.device)
    return torch.empty_like(x).contiguous(), kept

library = torch.library.Library("aten", "IMPL")
library.m.impl("_fused_rms_norm", "Meta", described)
for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
    x, w = (replace(spec_like(shape, dtype), requires_grad=True) for shape in ((6, 64), (64,)))
    for call, given in (
        (lambda x, w: F.rms_norm(x, (64,), w), [x, w]),
        (lambda x: F.rms_norm(x, (64,), eps=1e-5), [x]),
        (lambda x, w: torch.autograd.grad(F.rms_norm(x, (64,), w).sum(), (x, w)), [x, w]),
        (lambda x, w: torch.autograd.grad(F.rms_norm(x, (64,), w).exp().sum(), x, create_graph=True), [x, w]),
    ):
        found = compile_ahead(call, given, Options(target="sm_90", check_specs=True))
        assert not [step.op for program in found.programs for step in program.steps if isinstance(step, Library)]
"""


def test_rms_norm_is_fused_where_the_device_has_an_operator_for_it() -> None:
    """On CUDA autograd takes `_fused_rms_norm` whole, since it has a kernel there; elsewhere its parts, one of which
    writes in place. Here the device that stands for CUDA has a kernel for it too."""
    done = run(_RMS_NORM, begin=COMPILER)
    assert done.returncode == 0, done.stderr


def test_numbers_of_tensors_stay_on_their_device() -> None:
    """An optimizer's steps may be counted there: kernels read the number, and its constants are not copied there."""

    def function(p: torch.Tensor, g: torch.Tensor, step: torch.Tensor) -> None:
        step.add_(1)
        correction = 1 - 0.9 ** step.item()
        p.addcmul_(g, g, value=0.1 / correction)

    found = ahead(function, spec_like((130,)), spec_like((130,)), spec_like(()))
    assert called(found) == set() and targets(found) == {"gpu"} and devices(found) == {"cuda:0"}


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32], ids=str)
def test_a_product_that_nobody_uses_stays_where_there_is_no_kernel_for_it(dtype: torch.dtype) -> None:
    """Of integers on a GPU: it raises in eager, and so does the program."""

    def function(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        torch.einsum("...i,...i->...", c, c)
        c[None] @ c[:, None]
        return x.square().mean()

    found = ahead(function, spec_like((8, 8)), spec_like((8,), dtype))
    assert bool(called(found) & {"bmm", "mm", "dot"}) == (dtype is not torch.float32)


def test_a_transformer_block_trains_by_the_kernels_of_cuda() -> None:
    found = ahead(Block(torch.bfloat16), spec_like((2, 16, 64), torch.bfloat16))
    assert found.backward is not None and targets(found) == {"gpu"} and devices(found) == {"cuda:0"}
    expected = {"_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward", "native_dropout"}
    assert expected <= called(found) and not WRITTEN_OUT & called(found)
    assert "native_dropout_backward" not in called(found)  # nothing is drawn in it
    assert "native_layer_norm" not in called(found)  # it is fused, with moments in float32 as on CUDA
    assert found.plan.random == ("cuda:0",)
    assert all(tangent.device == CUDA for tangent in found.plan.tangents)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_with_a_mask_or_in_float32_is_the_memory_efficient_one(dtype: torch.dtype) -> None:
    mask = spec_like((2, 1, 16, 16), torch.bool)
    found = ahead(Block(dtype), spec_like((2, 16, 64), dtype), mask)
    expected = {"_scaled_dot_product_efficient_attention", "_scaled_dot_product_efficient_attention_backward"}
    assert expected <= called(found) and not WRITTEN_OUT & called(found)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, **options)


SHAPES: dict[str, tuple[torch.dtype, tuple[int, ...], tuple[int, ...], dict[str, Any], str]] = {
    "half": (torch.float16, (2, 4, 8, 64), (2, 4, 8, 64), {}, "_scaled_dot_product_flash_attention"),
    "padded": (torch.float16, (2, 4, 8, 60), (2, 4, 8, 60), {}, "_scaled_dot_product_flash_attention"),
    "shared heads": (
        torch.float16, (2, 4, 8, 64), (2, 2, 8, 64), {"enable_gqa": True}, "_scaled_dot_product_flash_attention",
    ),
    "other lengths": (torch.float16, (2, 4, 8, 64), (2, 4, 9, 64), {}, "_scaled_dot_product_flash_attention"),
    "causal, other lengths": (
        torch.float16, (2, 4, 8, 64), (2, 4, 9, 64), {"is_causal": True}, "_scaled_dot_product_efficient_attention",
    ),
    "wide heads": (torch.float16, (2, 4, 8, 512), (2, 4, 8, 512), {}, "_scaled_dot_product_efficient_attention"),
    "float": (torch.float32, (2, 4, 8, 64), (2, 4, 8, 64), {}, "_scaled_dot_product_efficient_attention"),
    "odd heads of floats": (torch.float32, (2, 4, 8, 15), (2, 4, 8, 15), {}, "bmm"),
    "double": (torch.float64, (2, 4, 8, 64), (2, 4, 8, 64), {}, "bmm"),
}  # fmt: skip


@pytest.mark.parametrize("case", SHAPES)
def test_attention_is_the_kernel_that_pytorch_chooses(case: str) -> None:
    dtype, query, key, options, expected = SHAPES[case]
    found = ahead(lambda q, k, v: attend(q, k, v, **options), *(spec_like(s, dtype) for s in (query, key, key)))
    assert expected in called(found)


def test_settings_of_attention_are_heeded() -> None:
    specs = [spec_like((2, 4, 8, 64), torch.float16)] * 3
    with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION]):
        assert "_scaled_dot_product_efficient_attention" in called(ahead(attend, *specs))
    with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH]):
        assert "bmm" in called(ahead(attend, *specs))


def test_what_a_kind_of_chip_can_do() -> None:
    assert capability("sm_75") == (7, 5) and capability("sm_90a") == (9, 0) and capability("sm_121a") == (12, 1)
    assert capability("simt-host") == (8, 0)


@pytest.mark.parametrize("weights", [False, True])
def test_attention_inside_of_pytorchs_own_functions_is_seen(weights: bool) -> None:
    """`F.multi_head_attention_forward` is a function of Python's, handed to modes as a whole."""

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.MultiheadAttention(64, 4, dropout=0.1)

        def forward(self, x: torch.Tensor) -> Any:
            return self.heads(x, x, x, need_weights=weights)[0]

    found = ahead(Heads().bfloat16(), spec_like((2, 16, 64), torch.bfloat16))
    expected = {"native_dropout"} if weights else {"_scaled_dot_product_flash_attention"}
    assert expected <= called(found) and not {"bernoulli", "bernoulli_"} & called(found)
    assert ("bmm" in called(found)) == weights  # as eager does where it returns the weights


NORMS: dict[str, tuple[Callable[[], nn.Module], torch.dtype]] = {
    "layer": (lambda: nn.LayerNorm(6), torch.float32),
    "layer in 16 bits": (lambda: nn.LayerNorm(6).bfloat16(), torch.bfloat16),
    "batch": (lambda: nn.BatchNorm2d(8), torch.float32),
    "batch, mixed": (lambda: nn.BatchNorm2d(8), torch.bfloat16),
    "batch, evaluated": (lambda: nn.BatchNorm2d(8).eval(), torch.float16),
    "group": (lambda: nn.GroupNorm(2, 8).half(), torch.float16),
    "instance": (lambda: nn.InstanceNorm2d(8, affine=True), torch.float32),
    "instance with statistics": (lambda: nn.InstanceNorm2d(8, track_running_stats=True), torch.float32),
}


@pytest.mark.parametrize("case", NORMS)
def test_norms_are_fused(case: str) -> None:
    """With the dtypes that they have on CUDA: moments of 16 bits are float32 there."""
    make, dtype = NORMS[case]
    given = spec_like((4, 8, 6, 6), dtype)
    for spec in (given, replace(given, requires_grad=True)):
        assert called(ahead(make(), spec)) == set()


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.conv(x)))
        return F.cross_entropy(self.head(F.adaptive_avg_pool2d(x, 1).flatten(1)), y)


@pytest.mark.parametrize("training", [True, False])
def test_convolutions_are_the_librarys_and_norms_are_fused(training: bool) -> None:
    model = Images().train(training)
    found = ahead(model, spec_like((4, 3, 8, 8)), spec_like((4,), torch.int64))
    names = called(found)
    assert {"convolution", "convolution_backward"} <= names and targets(found) == {"gpu"}
    assert not any("batch_norm" in name for name in names)
    assert len(found.plan.mutated_inputs) == (3 if training else 0)


def test_an_index_out_of_range_stops_the_device() -> None:
    """As in eager there: waiting for a flag would stall the host."""
    found = ahead(lambda t, i: F.embedding(i, t) * 2, spec_like((10, 4)), spec_like((3,), torch.int64))
    steps = found.forward.steps
    assert all(step.unless is None for step in steps if isinstance(step, Library))
    calls = [step.op if isinstance(step, Library) else step.kernel.name for step in steps]
    assert calls.count(aten._assert_async.msg) == 1
    gathers = [place for place, name in enumerate(calls) if isinstance(name, str) and "embedding" in name]
    assert calls.index(aten._assert_async.msg) < gathers[-1]


def test_random_numbers_are_the_librarys() -> None:
    def noisy(x: torch.Tensor) -> Any:
        return x + torch.rand_like(x), torch.randn(4, device=x.device), torch.bernoulli(x), F.dropout(x, 0.5)

    found = ahead(noisy, spec_like((4,)))
    assert {"rand_like", "randn", "native_dropout"} <= called(found)
    assert any(name.startswith("bernoulli") for name in called(found))
    assert devices(found) == {"cuda:0"} and found.plan.random == ("cuda:0",)


def test_a_program_sees_the_device_it_is_compiled_for() -> None:
    def looking(x: torch.Tensor) -> torch.Tensor:
        assert x.is_cuda and x.device == CUDA and not x.is_meta and x.get_device() == 0
        here = x.cuda() + torch.ones(4, device="cuda") + torch.zeros(4, device=torch.device("cuda:0"))
        return here.to("cuda").to(x.device) * torch.arange(4, device=x.device)

    found = ahead(looking, spec_like((4,)))
    assert called(found) == set() and devices(found) == {"cuda:0"}


def test_a_scalar_of_the_cpu_is_a_parameter_of_the_launch() -> None:
    rate = TensorSpec((), (), torch.float32, torch.device("cpu"))
    found = ahead(lambda x, rate: (x * (rate + 1)).sin() + rate, spec_like((64, 64)), rate)
    kinds = [(type(step).__name__, getattr(step, "target", None)) for step in found.forward.steps]
    assert kinds.count(("Launch", "gpu")) == 1 and ("Launch", "cpu") in kinds
    assert not [step for step in found.forward.steps if isinstance(step, Library)]
    for step in found.forward.steps:
        assert isinstance(step, Launch)
        for name, buffer in zip(step.args, step.kernel.parameters, strict=True):
            apart = step.target == "gpu" and found.forward.buffer(name).spec.device != CUDA
            assert buffer.on_host == apart
    arena = {buffer.spec.device for buffer in found.forward.buffers if buffer.place is Place.ARENA}
    assert len(arena) <= 1


def test_a_number_read_from_a_tensor_stays_on_its_device() -> None:
    """What takes it becomes an operator on tensors, which is where they are."""

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return torch.addcmul(x, x, x + 1, value=x.sum().item() * 2)

    found = ahead(scaled, spec_like((4, 4)))
    on_host = [buffer for buffer in found.forward.buffers if buffer.spec.device != CUDA]
    assert all(buffer.spec.shape == () for buffer in on_host) and "addcmul" not in called(found)


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_a_number_becomes_a_tensor_of_the_device_that_is_named(where: str) -> None:
    """Wherever what it is computed from is: optimizers make state of their rates so."""

    def made(x: torch.Tensor, rate: torch.Tensor, step: torch.Tensor) -> Any:
        rates, steps = rate.item(), step.item()
        return [torch.scalar_tensor(each, dtype=x.dtype, device=where) for each in (rates, steps, rates * steps * 2)], x

    found = ahead(made, spec_like((4,)), spec_like((), torch.float64, "cpu"), spec_like((), torch.float64))
    program = found.forward
    outputs = [program.buffer(each.buffer).spec.device for each in program.outputs if isinstance(each, Operand)]
    assert outputs[:3] == [torch.device(where, 0) if where == "cuda" else torch.device(where)] * 3
    for step in program.steps:
        if isinstance(step, Library):
            (given,) = (each for each in step.args if isinstance(each, Operand))
            specs = program.buffer(given.buffer).spec, program.buffer(step.outs[0] or "").spec
            assert dict(step.kwargs).get("device", specs[0].device) == specs[1].device


def test_what_is_copied_between_devices_is_a_library_call() -> None:
    found = ahead(lambda x: (x.sin().cpu().cos().to("cuda") + x, x.cpu()), spec_like((8,)))
    assert called(found) == {"_to_copy"} and targets(found) == {"gpu", "cpu"}


def test_what_kernels_of_a_target_cannot_hold_is_the_librarys(gpu: str) -> None:
    def program(x: torch.Tensor, i: torch.Tensor) -> Any:
        return x.cumsum(0) + 1, x[i] * 2, x.index_add(0, i, x[: i.shape[0]])

    specs = spec_like((8, 4)), spec_like((3,), torch.int64)
    names = {"cumsum", "index", "index_add"}
    assert not names & called(ahead(program, *specs))
    poor = Limits(unsupported=frozenset({"scan", "lookup", "scatter", "pieces"}), host_reads_flags=False)
    register("gpu", lambda: replace(describe_host(), name="gpu"), limits=poor, devices=("cuda",), on_request=True)
    with events.collect() as collected:
        found = ahead(program, *specs)
    assert names <= called(found)
    texts = [event.text for event in collected if event.channel == "fusion"]
    assert any("is a scan, which kernels for gpu cannot hold" in text for text in texts)
    with pytest.raises(SmeltError, match="unknown kinds"):
        register("bad", describe_host, limits=Limits(unsupported=frozenset({"pointwise"})))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["efficient", "flash"])
def test_caches_are_written_where_they_lie(dtype: torch.dtype) -> None:
    """No kernel that attends fails after the write, so nothing need be kept to begin anew."""

    def decode(query: Any, key: Any, value: Any, keys: Any, values: Any, at: Any) -> Any:
        keys.index_copy_(2, at, key)
        values.index_copy_(2, at, value)
        if dtype is torch.bfloat16:
            return F.scaled_dot_product_attention(query, keys, values)
        mask = torch.arange(64, device=query.device) <= at[:, None]
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)

    new, cache = spec_like((2, 4, 1, 64), dtype), spec_like((2, 4, 64, 64), dtype)
    with torch.no_grad():
        found = ahead(decode, new, new, new, cache, cache, spec_like((1,), torch.int64))
    (attention,) = called(found) - {"_assert_async"}
    assert ("flash" if dtype is torch.bfloat16 else "efficient") in attention
    buffers = found.forward.buffers
    assert not [each.name for each in buffers if each.place is not Place.INPUT and each.spec.shape == cache.shape]
    assert found.forward.outputs[1:] == (None, None)


def test_what_is_updated_by_numbers_of_the_host_is_written_where_it_lies() -> None:
    """The number of steps is a tensor of the host's: whoever launches the update reads it there."""

    def update(params: list[Any], means: list[Any], steps: list[Any]) -> None:
        for param, mean, step in zip(params, means, steps, strict=True):
            step += 1
            mean.mul_(0.9).add_(param)
            param.sub_(mean * (0.1 / (1 - 0.9**step)))

    shapes = [(40, 8), (50,), (60, 4), (70,), (80, 2)]
    specs = [spec_like(shape) for shape in shapes]
    with torch.no_grad():
        found = ahead(update, specs, specs, [spec_like((), device="cpu") for _ in shapes])
    assert set(found.forward.outputs) == {None}
    made = [each.spec.shape for each in found.forward.buffers if each.place is not Place.INPUT]
    assert not set(made) & set(shapes)
    assert not [step for step in found.forward.steps if isinstance(step, Library)]


def test_targets_without_a_name_here_are_refused() -> None:
    with pytest.raises(SmeltError, match="unknown target 'abacus'") as caught:
        ahead(torch.sin, spec_like((4,)), target="abacus")
    assert "choose from" in str(caught.value) and "gpu" in str(caught.value)


def test_a_device_without_a_target_has_no_kernels() -> None:
    with warnings.catch_warnings(), pytest.raises(CannotTrace, match="is on cuda, and kernels are made for"):
        warnings.simplefilter("ignore")  # why there is none
        ahead(torch.sin, spec_like((4,)), target="")


def test_what_reads_data_is_refused() -> None:
    with pytest.raises(CannotTrace):
        ahead(lambda x: x if x.sum() > 0 else -x, spec_like((4,)))
    with pytest.raises(CannotTrace, match="same device"):
        ahead(lambda x: x + torch.ones(4), spec_like((4,)))


def test_limits_are_those_of_each_device(gpu: str) -> None:
    register(
        "gpu", lambda: replace(describe_host(), name="gpu"), limits=Limits(values=2), devices=("cuda",), on_request=True
    )

    def both(x: torch.Tensor) -> Any:
        return x.sin().cos().exp().tanh(), x.cpu().sin().cos().exp().tanh()

    found = ahead(both, spec_like((8,)))
    kernels = [step.kernel.target for step in found.forward.steps if isinstance(step, Launch)]
    assert sorted(kernels) == ["cpu", "gpu", "gpu"]
