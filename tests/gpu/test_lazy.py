"""Lazy tensors on a GPU: eager's losses, eager's random numbers, and streams in their order. In processes of their own:
a process has one device that is not PyTorch's."""

from pathlib import Path

import pytest
import torch

from tests.processes import run_new

BEGIN = """
import sys

import torch
import torch.nn.functional as F
from torch import nn

import smelt

device = sys.argv[1] if len(sys.argv) > 1 else "lazy"
if device == "lazy":
    smelt.lazy.enable(on="cuda", background=False)

def same(one, other, allowed):
    one, other = one.detach().cpu().double(), other.detach().cpu().double()
    assert one.shape == other.shape, (one.shape, other.shape)
    off = float((one - other).abs().max())
    assert off <= allowed * max(1.0, float(other.abs().max())), off
"""

# What is saved by a process with the device, and by one without.
BESIDE_EAGER = {
    "training": """
def made():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator, found = torch.Generator().manual_seed(1), []
    for size in (16, 16, 16, 24, 40):
        x, y = torch.randn(size, 32, generator=generator), torch.randint(0, 10, (size,), generator=generator)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return found
""",
    "attention": """
def made():
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        generator = torch.Generator().manual_seed(1)
        given = [torch.randn(2, 4, 64, 32, generator=generator).to(device, dtype).requires_grad_() for _ in range(3)]
        attended = F.scaled_dot_product_attention(*given, is_causal=True)
        attended.float().square().sum().backward()
        found += [attended, *(each.grad for each in given)]
    return found
""",
}

SAVED = """
torch.save([each.detach().cpu() for each in made()], sys.argv[2])
if device == "lazy":
    assert not smelt.lazy.explain().not_compiled and not smelt.lazy.explain().fallbacks, smelt.lazy.explain()
"""

SCRIPTS = {
    "random numbers": """
def drawn(device):
    torch.manual_seed(7)
    found = [torch.randn(1000, device=device), torch.randint(0, 9, (50,), device=device)]
    for count, dtype in ((1000, torch.float32), (4099, torch.float32), (1 << 20, torch.bfloat16)):
        found.append(F.dropout(torch.ones(count, device=device, dtype=dtype), 0.3))
    found.append(F.dropout(torch.ones(4097, device=device)[1:], 0.2))
    return [each.cpu() for each in (*found, torch.rand(5, device=device))]

assert all(map(torch.equal, drawn("lazy"), drawn("cuda")))
""",
    "streams": """
mine, given = torch.cuda.Stream(), torch.randn(1 << 20, device="cuda")
torch.cuda.synchronize()
for _ in range(10):
    with torch.cuda.stream(mine):
        torch.cuda._sleep(2_000_000)
        x = (given * 2).to("lazy").requires_grad_()
        (x.sin() * 3).sum().backward()
        found = x.grad.to("cuda") + 1
    mine.synchronize()
    same(found, 3 * (given * 2).cos() + 1, 1e-5)
""",
    "the gpu's own backward": """
assert torch.accelerator.current_accelerator().type == "cuda"
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 10)).to("cuda")
x = torch.randn(16, 32, device="cuda", requires_grad=True)
want = [each.cpu().double() for each in torch.autograd.grad(
    F.cross_entropy(model(x), torch.arange(16, device="cuda") % 10), [x, *model.parameters()])]
wide = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 10)).double()
wide.load_state_dict({name: each.cpu().double() for name, each in model.state_dict().items()})
leaf = x.detach().cpu().double().requires_grad_()
exact = torch.autograd.grad(F.cross_entropy(wide(leaf), torch.arange(16) % 10), [leaf, *wide.parameters()])
for one, other in zip(want, exact, strict=True):
    same(one, other, 1e-5)

side = torch.cuda.Stream()  # nodes on two streams, and a sum of gradients from both
for _ in range(10):
    w = torch.ones(1 << 20, device="cuda", requires_grad=True)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(2_000_000)
        one = (w * 3).sum()
    torch.cuda.current_stream().wait_stream(side)
    (one + (w * 4).sum()).backward()
    same(w.grad, torch.full((1 << 20,), 7.0), 0)

w = torch.ones(3, device="cuda", requires_grad=True)  # one graph on both devices
v = torch.full((3,), 2.0, device="lazy", requires_grad=True)
((w.to("lazy") * v).to("cuda") * w).sum().backward()
assert w.grad.tolist() == [4.0] * 3 and v.grad.tolist() == [1.0] * 3
""",
    "a block": """
x = torch.tensor([1.0, 2.0, 3.0], device="cuda")
with smelt.lazy():
    y = (x + 1) * 2
    x.add_(10)
assert y.tolist() == [4, 6, 8] and x.tolist() == [11, 12, 13] and y.is_cuda
mine, given = torch.cuda.Stream(), torch.randn(1 << 22, device="cuda")
for _ in range(5):
    with smelt.lazy():
        torch.cuda._sleep(1_000_000)
        y = given * 2
        mine.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(mine):
            z = y + 1
    mine.synchronize()
    same(z, given * 2 + 1, 1e-6)
""",
}

TRAINED_IN_A_BLOCK = """
def losses():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 10)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator, found = torch.Generator().manual_seed(1), []
    for _ in range(4):
        x, y = torch.randn(16, 32, generator=generator), torch.randint(0, 10, (16,), generator=generator)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.to("cuda")), y.to("cuda"))
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return torch.stack(found)

eager = losses()
with smelt.lazy(on="cuda"):
    lazy = losses()
same(lazy, eager, 1e-4)
"""


@pytest.mark.parametrize("name", SCRIPTS)
def test_lazily(name: str) -> None:
    done = run_new(BEGIN + SCRIPTS[name])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("device", ["cuda", "lazy"])
def test_a_block_trains_tensors_of_the_gpu(device: str) -> None:
    done = run_new(BEGIN + TRAINED_IN_A_BLOCK, arguments=[device])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", BESIDE_EAGER)
def test_what_eager_makes(name: str, tmp_path: Path) -> None:
    found = []
    for device in ("lazy", "cuda"):
        file = tmp_path / device
        done = run_new(BEGIN + BESIDE_EAGER[name] + SAVED, arguments=[device, str(file)])
        assert done.returncode == 0, done.stderr
        found.append(torch.load(file))
    for mine, eager in zip(*found, strict=True):
        allowed = 1e-4 if eager.dtype is torch.float32 else 3e-2
        torch.testing.assert_close(mine, eager, rtol=allowed, atol=allowed)
