"""smelt stays light: what importing it loads, what compiling loads, and that no other program is ever started."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests import processes

HEAVY = ("llvmlite", "sympy", "scipy", "networkx", "pandas", "torch._dynamo", "torch._inductor", "torch._functorch")

STEP = """
import json, sys
import torch

before = set(sys.modules)
import smelt

def refuse(event, args):
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty"):
        raise RuntimeError(f"{event} {args}")

sys.addaudithook(refuse)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 1))
x = torch.randn(5, 8)

def gradients(call):
    model.zero_grad()
    call(x).square().mean().backward()
    return [p.grad.clone() for p in model.parameters()]

expected = gradients(model)
found = gradients(smelt.compile(model, options={"fallback": False}))
for mine, theirs in zip(found, expected, strict=True):
    assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-6)  # torch.testing would import sympy itself
print(json.dumps({"modules": sorted(set(sys.modules) - before), "graphs": smelt.counters["graphs"]}))
"""


def run(script: str, **environment: str) -> dict[str, object]:
    done = processes.run(script, begin="import torch\n", environment=environment)
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return answer


def loaded(answer: dict[str, object]) -> list[str]:
    modules = answer["modules"]
    assert isinstance(modules, list)
    return [module for module in modules if any(module == heavy or module.startswith(heavy + ".") for heavy in HEAVY)]


def test_importing_smelt_loads_nothing_heavy() -> None:
    answer = run(
        "import json, sys, torch\nbefore = set(sys.modules)\nimport smelt\n"
        "print(json.dumps({'modules': sorted(set(sys.modules) - before)}))"
    )
    assert loaded(answer) == []
    modules = answer["modules"]
    assert isinstance(modules, list)
    tops = {module.split(".")[0] for module in modules}
    assert {top for top in tops if top not in sys.stdlib_module_names} <= {"smelt", "torch"}


def test_classes_are_defined_the_quick_way() -> None:
    """The standard decorator costs a millisecond a class, of which there are hundreds: see `base/fast_dataclass.py`."""
    sources = Path(__file__).parents[2].joinpath("src").rglob("*.py")
    standard = re.compile(r"^(from dataclasses import .*\bdataclass\b|\s*@dataclasses\.dataclass)", re.MULTILINE)
    assert [path.name for path in sources if standard.search(path.read_text())] == []


def test_a_training_step_compiles_without_any_other_program_and_without_the_heavy_modules() -> None:
    answer = run(STEP, PATH="", CC="/nonexistent", CXX="/nonexistent")
    assert answer["graphs"]
    assert [module for module in loaded(answer) if not module.startswith("llvmlite")] == []


def test_a_start_from_the_cache_loads_none_of_the_stages(tmp_path: Path) -> None:
    settings = {"SMELT_CACHE": "1", "SMELT_CACHE_DIR": str(tmp_path)}
    stages = {"smelt.pipeline.compile", "smelt.autograd.joint.trace_joint", "smelt.ops.decompositions"}
    stages |= {"smelt.simplify", "smelt.fuse.emit_program", "smelt.codegen.build", "llvmlite"}
    cold, warm = run(STEP, **settings), run(STEP, **settings)
    assert isinstance(cold["modules"], list) and isinstance(warm["modules"], list)
    assert stages <= set(cold["modules"]) and not stages & set(warm["modules"])
    assert warm["graphs"] == cold["graphs"]


POINTWISE = """
import json, sys
import torch

before = set(sys.modules)
import smelt

x, y = torch.randn(1024), torch.randn(1024)
function = lambda x, y: (torch.sin(x) + y).relu()
assert torch.allclose(smelt.compile(function)(x, y), function(x, y), atol=1e-6)
print(json.dumps({"modules": sorted(set(sys.modules) - before)}))
"""


def test_a_pointwise_function_loads_no_part_for_gradients_sizes_products_or_checks() -> None:
    """They were a tenth of a first call."""
    answer = run(POINTWISE, SMELT_CACHE="0")
    parts = (
        "smelt.autograd.partition", "smelt.pipeline.backward.", "smelt.pipeline.sizes.template",
        "smelt.fuse.lowering.attention", "smelt.fuse.lowering.convolutions", "smelt.fuse.lowering.recurrence",
        "smelt.fuse.lowering.dequantize", "smelt.fuse.check_fusion", "smelt.ir.loops.check",
    )  # fmt: skip
    assert isinstance(answer["modules"], list)
    assert [module for module in answer["modules"] if module.startswith(parts)] == []


SIZES = """
import json, sys
import torch
import torch.nn.functional as F

before = set(sys.modules)
import smelt

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = torch.nn.Embedding(20, 8), torch.nn.Parameter(torch.randn(1, 32, 8))
        self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.image, self.last = torch.nn.Conv2d(1, 2, 3, padding=1), torch.nn.Linear(8, 20)

    def forward(self, words):
        batch, length = words.shape
        x = self.words(words) + self.places[:, :length]
        mask = torch.full((length, length), float("-inf")).triu(1)
        x = self.layer(x, src_mask=mask).repeat(1, 2, 1)[:, :length]
        x = x + F.adaptive_avg_pool2d(F.relu(self.image(x[:, None].contiguous())), (1, 8)).mean(1)
        x = x.flip(1).roll(1, 1) * x.sort(1)[0] + torch.cat([x[:, :1], x[:, 1:]], 1)
        return F.cross_entropy(self.last(x).flatten(0, 1), F.pad(words, (0, 1))[:, 1:].flatten())

torch.manual_seed(0)
model = Model()
compiled = smelt.compile(model, backend=BACKEND, options={"fallback": False})
for batch, length in ((2, 5), (3, 7), (4, 9), (2, 11)):
    words = torch.randint(20, (batch, length))
    mine, theirs = compiled(words), model(words)
    assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-6)
    mine.backward()
print(json.dumps({"modules": sorted(set(sys.modules) - before), "graphs": smelt.counters["graphs"]}))
"""


@pytest.mark.parametrize("backend", ["eager", "llvm"])
def test_sizes_that_change_load_nothing_heavy(backend: str) -> None:
    answer = run(SIZES.replace("BACKEND", repr(backend)))
    assert answer["graphs"] == 2
    assert [module for module in loaded(answer) if not module.startswith("llvmlite")] == []
