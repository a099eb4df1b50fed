"""Which products on an NVIDIA GPU are kernels of our own, with what fused, and why others are not. Needs no GPU."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import smelt
from smelt.base.events import collect
from smelt.base.options import Options
from smelt.ir.kernel import Contract, Kernel, WeightedSum
from smelt.ir.program import Launch, Library, Program
from tests.absent_device.ahead import compile_ahead, spec_like
from tests.simt_host.offer import SIMT_HOST

BF16 = torch.bfloat16


class GatedLayers(nn.Module):
    """A feed-forward block with a norm, a gate and a residual."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        gated: Tensor = F.silu(self.gate(h)) * self.up(h)
        down: Tensor = self.down(gated)
        return x + down


def compiled(
    model: object, *shapes: tuple[int, ...], dtype: torch.dtype = BF16, target: str = "sm_90"
) -> tuple[Program, str]:
    """The program for a GPU that is not here, and all that was told."""
    with collect() as events:
        ahead = compile_ahead(model, [spec_like(shape, dtype) for shape in shapes], Options(target=target))  # type: ignore[arg-type]
    return ahead.forward, "\n".join(event.text for event in events)


def multiplying(program: Program) -> list[Kernel]:
    kernels = [step.kernel for step in program.steps if isinstance(step, Launch)]
    plain = [kernel for kernel in kernels if isinstance(kernel, Kernel)]
    return [kernel for kernel in plain if any(isinstance(i, Contract) for i in kernel.instructions())]


def calls(program: Program) -> int:
    return sum(isinstance(step, Library) for step in program.steps)


def test_a_token_goes_through_kernels_alone() -> None:
    model = GatedLayers(256, 1024).to(BF16).requires_grad_(False)
    program, told = compiled(model, (1, 1, 256))
    assert len(multiplying(program)) == 3 and calls(program) == 0
    assert sum(isinstance(step, Launch) for step in program.steps) == 4  # with the norm
    assert "it multiplies 1×1024×256 in about" in told


@pytest.mark.parametrize(
    ("rows", "target", "why"),
    [
        (512, "sm_90", "multiplies 512×2048×2048, which kernels do not do faster than the library"),
        (1, "sm_80", ""),
    ],
)
def test_others_are_the_librarys(rows: int, target: str, why: str) -> None:
    program, told = compiled(lambda x, w: F.linear(x, w), (rows, 2048), (2048, 2048), target=target)
    assert calls(program) == 1 and not multiplying(program)
    assert why in told


def test_float32_is_multiplied_as_it_is() -> None:
    program, _ = compiled(lambda x, w: F.linear(x, w), (2, 2048), (2048, 2048), dtype=torch.float32)
    (kernel,) = multiplying(program)
    (contract,) = (i for i in kernel.instructions() if isinstance(i, Contract))
    assert contract.dtype is torch.float32 and not calls(program)


def from_int4(x: Tensor, q: Tensor, scale: Tensor) -> Tensor:
    """A layer with weights of four bits in groups of 64."""
    rows, groups = scale.shape
    halves = torch.stack((q & 15, q >> 4), -1).view(rows, groups, -1)
    return F.linear(x, ((halves.to(x.dtype) - 8) * scale[:, :, None]).view(rows, -1))


def test_weights_of_four_bits_stay_in_memory_as_they_are() -> None:
    specs = [spec_like((1, 1, 2048), BF16), spec_like((1024, 1024), torch.uint8), spec_like((1024, 32), BF16)]
    program = compile_ahead(from_int4, specs, Options(target="sm_90")).forward
    (kernel,) = multiplying(program)
    (contract,) = (i for i in kernel.instructions() if isinstance(i, Contract))
    assert len(program.steps) == 1 and any(factor.quantized for factor in contract.factors)


def weighing(program: Program) -> list[Kernel]:
    kernels = [step.kernel for step in program.steps if isinstance(step, Launch)]
    plain = [kernel for kernel in kernels if isinstance(kernel, Kernel)]
    return [kernel for kernel in plain if any(isinstance(i, WeightedSum) for i in kernel.instructions())]


def attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """As models do where several heads share keys: with a copy for each head."""
    batch, heads, length, width = keys.shape
    times = q.shape[1] // heads
    copies = [each[:, :, None].expand(batch, heads, times, length, width) for each in (keys, values)]
    k, v = (each.reshape(batch, heads * times, length, width) for each in copies)
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return attended.transpose(1, 2).reshape(batch, -1)


CACHE = ((1, 8, 1, 64), (1, 2, 1024, 64), (1, 2, 1024, 64), (1, 1, 1, 1024))


def test_a_token_attends_in_place() -> None:
    """Nothing is copied: heads share keys, and the result is laid out as it is read."""
    program, told = compiled(attend, *CACHE)
    (kernel,) = weighing(program)
    assert [axis.size for axis in kernel.rows] == [1, 2, 4, 1] and len(program.steps) == 1
    assert "attends 8 times 1×1024×64: keys are read in place, and no scores are in memory" in told


def test_many_queries_with_a_mask_attend_by_tensor_cores() -> None:
    """For which PyTorch has its slowest kernel that keeps no scores."""
    program, told = compiled(attend, (1, 8, 128, 64), *CACHE[1:3], (1, 1, 128, 1024))
    assert len(weighing(program)) == 1 and not calls(program) and "attends 8 times 128×1024×64" in told


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({0: (1, 8, 32, 64)}, "attends with many queries"),
        ({0: (1, 18, 1, 64)}, "attends with many heads that share keys"),
    ],
    ids=["queries", "heads"],
)
def test_other_attention_is_the_librarys(change: dict[int, tuple[int, ...]], why: str) -> None:
    program, told = compiled(attend, *[change.get(place, shape) for place, shape in enumerate(CACHE)])
    assert calls(program) == 1 and not weighing(program) and why in told


@pytest.mark.parametrize(("keys", "own"), [(512, True), (2048, False)])
def test_many_keys_without_a_mask_are_the_librarys(keys: int, own: bool) -> None:
    cache = (1, 8, keys, 64)
    program, told = compiled(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), (1, 8, 1, 64), cache, cache)
    assert bool(weighing(program)) is own and bool(calls(program)) is not own
    assert own or "which the library does faster" in told


@pytest.mark.parametrize("queries", [1, 2])
def test_attention_by_grids_computes_what_eager_does(queries: int) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, queries, 16), torch.randn(2, 4, 300, 16), torch.randn(2, 4, 300, 16)
    mask = torch.randn(2, 1, queries, 300).masked_fill(torch.rand(300) < 0.3, -torch.inf)
    options = {"target": SIMT_HOST, "products": "own", "fallback": False}
    function = F.scaled_dot_product_attention
    with torch.no_grad(), collect() as events:
        found = smelt.compile(lambda *given: function(*given), options=options)(q, k, v, mask)
    assert "attends 8 times" in "\n".join(event.text for event in events)
    torch.testing.assert_close(found, function(q, k, v, mask))
