"""`smelt.lazy.enable(on="sim")`: the chip's own device records, in a process of its own since that stays so."""

import json

import pytest

from tests.processes import run_new

_BEGIN = """
import sys
sys.path.insert(0, "plugins/sim")
import copy, io, json, warnings
import torch
from torch import nn
import smelt
from smelt.chips import device_named
from smelt_sim import Sim

warnings.simplefilter("error", smelt.SmeltWarning)
smelt.register_chip("sim", Sim())
"""

_TRAINING = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.mlp = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16), nn.Dropout(0.1))

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)) * 8**-0.5
        scores = scores.masked_fill(torch.ones(5, 5, dtype=torch.bool, device=x.device).triu(1), -torch.inf)
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape))
        return x + self.mlp(x)

class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(20, 16), nn.Embedding(5, 16)
        self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(16, 20)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(5, device=ids.device))
        return self.head(self.blocks(x)).flatten(0, 1)

def mlp():
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 20))

def train(device, make, steps=5):
    torch.manual_seed(0)
    model = make().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        if make is GPT:
            x = torch.randint(0, 20, (4, 5)).to(device)
            y = x.flatten()
        else:
            x, y = torch.randn(8, 20).to(device), torch.randint(0, 20, (8,)).to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses

smelt.lazy.enable(on="sim", background=BACKGROUND)
for make in (mlp, GPT):
    print(json.dumps([train("sim", make), train("cpu", make), smelt.counters["chip_fallbacks"]]))
"""


@pytest.mark.parametrize("background", [False, True])
def test_training_lazily_on_a_chip_gives_the_hosts_losses(background: bool) -> None:
    done = run_new(_BEGIN + _TRAINING.replace("BACKGROUND", str(background)))
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 2, done
    for found, wanted, fallbacks in rows:
        assert found == pytest.approx(wanted, rel=2e-4) and fallbacks == 0


_MODELS = """
from smelt.chips import fallbacks
from tests.chips.models import MODELS, Training, far_off

smelt.lazy.enable(on="sim", background=False)
for name in MODELS:
    launches = smelt.counters["chip_launches"]
    training = Training("sim", name)
    wrong = far_off(training.losses(), name)
    assert wrong is None, wrong
    assert smelt.counters["chip_launches"] > launches
assert not fallbacks("sim"), fallbacks("sim")
told = smelt.lazy.explain()
assert told.compile_count and not told.fallbacks and not told.not_compiled, told
print("trained")
"""


def test_four_models_train_lazily_with_the_hosts_losses() -> None:
    done = run_new(_BEGIN + _MODELS)
    assert done.stdout.endswith("trained\n"), done


_DEVICE = """
early = torch.arange(6.0, device="sim")
view = early.view(2, 3)[1]
smelt.lazy.enable(on="sim", background=False)
assert smelt.lazy.enable(on="sim").type == "sim"

before = smelt.counters["chip_launches"]
x = torch.randn(8, device="sim")
y = ((x + 1) * 2).sin()
assert smelt.counters["chip_launches"] == before
assert torch.allclose(y.cpu(), ((x.cpu() + 1) * 2).sin())
assert smelt.counters["chip_launches"] == before + 1  # fused

early.add_(10)  # what was there before is recorded, too, with its views
assert view.tolist() == [13.0, 14.0, 15.0]

file = io.BytesIO()
torch.save({"y": y}, file)
file.seek(0)
assert torch.equal(torch.load(file)["y"].cpu(), y.cpu())
assert torch.equal(copy.deepcopy(y).cpu(), y.cpu())
assert repr(early[:2]) == "tensor([10., 11.], device='sim:0')"
assert (y > 0).nonzero().device.type == "sim"  # needs numbers
compiled = smelt.compile(lambda t: t.relu() * 2)
assert torch.equal(compiled(y).cpu(), y.cpu().relu() * 2)
with torch.autocast("sim", dtype=torch.bfloat16):
    assert (torch.ones(2, 3, device="sim") @ torch.ones(3, 2, device="sim")).tolist() == [[3.0, 3.0], [3.0, 3.0]]
smelt.lazy.step()
assert "compiled" in str(smelt.lazy.explain())
try:
    smelt.lazy.enable(on="cpu")
except smelt.SmeltError as error:
    assert error.code == "SM070"
else:
    raise AssertionError("two lazy devices")
del x, y, early, view, compiled
smelt.reset()
import gc
gc.collect()
device_named("sim").release()
assert device_named("sim").allocations == 0, device_named("sim").allocations
print("done")
"""


def test_the_chips_device_records() -> None:
    done = run_new(_BEGIN.replace('"error", smelt.SmeltWarning', '"ignore"') + _DEVICE)
    assert done.stdout.endswith("done\n"), done
