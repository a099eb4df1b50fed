"""Lazy tensors on a GPU: eager's losses, eager's random numbers, and streams in their order. In processes of their own:
a process has one device that is not PyTorch's, and lazy tensors run on one kind of device in it."""

import pytest

from tests.processes import run_new

BEGIN = """
import torch
import torch.nn.functional as F
from torch import nn

import smelt

smelt.lazy.enable(on="cuda", background=False)

def same(one, other, allowed):
    one, other = one.detach().cpu().double(), other.detach().cpu().double()
    assert one.shape == other.shape, (one.shape, other.shape)
    off = float((one - other).abs().max())
    assert off <= allowed * max(1.0, float(other.abs().max())), off
"""

SCRIPTS = {
    "training": """
def losses(device):
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
    return torch.stack(found)

same(losses("lazy"), losses("cuda"), 1e-4)
assert not smelt.lazy.explain().not_compiled, smelt.lazy.explain()
""",
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
    "attention": """
def attended(device, dtype):
    generator = torch.Generator().manual_seed(1)
    given = [torch.randn(2, 4, 64, 32, generator=generator).to(device, dtype).requires_grad_() for _ in range(3)]
    made = F.scaled_dot_product_attention(*given, is_causal=True)
    made.float().square().sum().backward()
    return [made, *(each.grad for each in given)]

for dtype, allowed in ((torch.float32, 1e-4), (torch.bfloat16, 3e-2)):
    for one, other in zip(attended("lazy", dtype), attended("cuda", dtype), strict=True):
        same(one, other, allowed)
assert not smelt.lazy.explain().fallbacks, smelt.lazy.explain().fallbacks
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


@pytest.mark.parametrize("name", SCRIPTS)
def test_lazily(name: str) -> None:
    done = run_new(BEGIN + SCRIPTS[name])
    assert done.returncode == 0, done.stderr
