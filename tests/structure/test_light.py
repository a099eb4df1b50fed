"""smelt stays light: what importing it loads, what compiling loads, and that no other program is ever started."""

import json
import os
import subprocess
import sys

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
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
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


def test_a_training_step_compiles_without_any_other_program_and_without_the_heavy_modules() -> None:
    answer = run(STEP, PATH="", CC="/nonexistent", CXX="/nonexistent")
    assert answer["graphs"]
    assert [module for module in loaded(answer) if not module.startswith("llvmlite")] == []
