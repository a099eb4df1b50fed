"""Models as objects without a loader: as WebAssembly under node, and on processors that this machine is not."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.codegen.static.build import StaticModel
from smelt.deploy.artifact import export
from smelt.deploy.static_model import static_model_of
from smelt.ir.artifact.machine import Machine
from tests.codegen.foreign import run_static, runner
from tests.deploy.models import MODELS
from tests.deploy.test_training import TRAININGS, batches

SCRIPT = """
import fs from "node:fs";
import { load } from "./model.mjs";
const given = JSON.parse(fs.readFileSync("given.json"));
const inputs = Object.fromEntries(given.map(([name, kind, shape, data]) => {
  const values = kind === "BigInt64Array" ? data.map(BigInt) : data;
  return [name, { data: globalThis[kind].from(values), shape }];
}));
const session = await load();
session.run(inputs);
const found = Object.entries(session.run(inputs));
console.log(JSON.stringify(found.map(([name, { data, shape }]) => [name, shape, Array.from(data, Number)])));
"""
ARRAYS = {torch.float32: "Float32Array", torch.int64: "BigInt64Array", torch.bool: "Uint8Array"}


def made(name: str) -> tuple[Machine, list[tuple[str, torch.Tensor]], list[torch.Tensor], list[torch.Tensor]]:
    """The machine of a model, its inputs by name, what eager gives, and that in float64."""
    torch.manual_seed(0)
    model, args, kwargs = MODELS[name]()
    machine = export(model, args, kwargs).machine
    names = [each.name for each in machine.arguments if each.register is not None]
    given = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
    with torch.no_grad():
        want = _tensors(model(*args, **kwargs))
        wide = {key: each.double() if each.is_floating_point() else each for key, each in kwargs.items()}
        truth = _tensors(model.double()(*(each.double() for each in args), **wide))
    model.float()
    return machine, list(zip(names, given, strict=True)), want, truth


def _tensors(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    values = result.values() if hasattr(result, "values") else result
    return [each for value in values for each in _tensors(value)]


def close(got: torch.Tensor, eager: torch.Tensor, truth: torch.Tensor) -> None:
    """At most twice eager's error, plus a few ulp of what is largest."""
    error, allowed = (float((each.double() - truth).abs().max()) for each in (got, eager))
    assert error <= 2 * allowed + 8 * torch.finfo(eager.dtype).eps * float(truth.abs().max())


def built(machine: Machine, target: str) -> StaticModel:
    return static_model_of(machine, target, "model")


@pytest.mark.parametrize("name", ["mlp", "gpt2", "vit", "resnet"])
def test_in_webassembly(name: str, tmp_path: Path) -> None:
    command = runner("wasm32")
    machine, inputs, want, truth = made(name)
    model = built(machine, "wasm32")
    assert model.module is not None and model.javascript is not None
    (tmp_path / "model.wasm").write_bytes(model.module)
    (tmp_path / "model.mjs").write_text(model.javascript)
    (tmp_path / "main.mjs").write_text(SCRIPT)
    given = [[key, ARRAYS[each.dtype], list(each.shape), each.flatten().tolist()] for key, each in inputs]
    (tmp_path / "given.json").write_text(json.dumps(given))
    argv = [*command, "main.mjs"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert len(found) == len(want)
    for (_, shape, data), eager, exact in zip(found, want, truth, strict=True):
        close(torch.tensor(data).reshape(shape), eager, exact)


@pytest.mark.parametrize("target", ["x86-64-v3", "riscv64-v", "riscv64"])
@pytest.mark.parametrize("name", ["mlp", "bert", "resnet"])
def test_on_other_processors(name: str, target: str, tmp_path: Path) -> None:
    runner(target)
    machine, inputs, want, truth = made(name)
    outputs = [torch.zeros_like(each) for each in want]
    assert run_static(built(machine, target), target, [each for _, each in inputs], outputs, tmp_path) == 0
    for got, eager, exact in zip(outputs, want, truth, strict=True):
        close(got, eager, exact)


STEPS = """
import fs from "node:fs";
import { load } from "./model.mjs";
const session = await load();
const losses = JSON.parse(fs.readFileSync("batches.json")).map(([x, y]) => session.run({
  x: { data: Float32Array.from(x), shape: [16, 4] },
  y: { data: BigInt64Array.from(y.map(BigInt)), shape: [16] },
}).output.data[0]);
console.log(JSON.stringify(losses));
"""


@pytest.mark.parametrize("name", [*list(TRAININGS)[:2], "sgd, cycles"])
def test_training_in_webassembly(name: str, tmp_path: Path) -> None:
    """Begun in Python, with an optimizer and a schedule; parameters and their state are in the session."""
    command = runner("wasm32")
    training, data = TRAININGS[name](), batches(25)
    for batch in data[:10]:
        training.step(*batch)
    smelt.export(training.step, data[0], name="step").save_static(tmp_path / "model", "wasm32")
    losses = [training.step(*batch).item() for batch in data[10:]]
    (tmp_path / "batches.json").write_text(json.dumps([[x.flatten().tolist(), y.tolist()] for x, y in data[10:]]))
    (tmp_path / "main.mjs").write_text(STEPS)
    argv = [*command, "main.mjs"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == pytest.approx(losses, rel=1e-4, abs=1e-5)


def halved(x: torch.Tensor) -> torch.Tensor:
    while x.sum() > 1:
        x = x * 0.5 + 0.01 * x.max()
    if x.min() < 0:
        return x.abs()
    return x


@pytest.mark.parametrize("target", ["aarch64", "x86-64-v3", "riscv64-v"])
@pytest.mark.parametrize("first", [0.1, 0.6, 1e12])
def test_a_loop_on_data(target: str, first: float, tmp_path: Path) -> None:
    runner(target)
    model = static_model_of(smelt.export(halved, (torch.ones(3),)).machine, target, "halved")
    x = torch.tensor([first, 0.25 * first, 0.375 * first])
    for given in (x, -x):
        got = torch.zeros(3)
        assert run_static(model, target, [given], [got], tmp_path) == 0
        torch.testing.assert_close(got, halved(given))


@pytest.mark.parametrize("target", ["x86-64-v2", "riscv64-v"])
def test_sizes_that_differ(target: str, tmp_path: Path) -> None:
    """Of which the code for another target than the artifact's own may rely on other things."""
    runner(target)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.LayerNorm(12), torch.nn.Softmax(0)).eval()
    rows_of = {"input": {0: smelt.Dimension("rows", 1, 4096)}}
    machine = smelt.export(model, (torch.randn(5, 8),), dynamic=rows_of).machine
    made = static_model_of(machine, target, "model")
    for rows in (1, 2, 3, 8, 17, 64, 1500):
        x, got = torch.randn(rows, 8), torch.zeros(rows, 12)
        assert run_static(made, target, [x], [got], tmp_path) == 0
        torch.testing.assert_close(got, model(x))
    assert run_static(made, target, [torch.randn(4097, 8)], [torch.zeros(4097, 12)], tmp_path) == 1


ITS_OWN = r"""
#include <stdio.h>
#include "its_own.h"

int main(void)
{
    static _Alignas(64) char state[ITS_OWN_STATE_BYTES], memory[ITS_OWN_MEMORY_BYTES];
    static float x[1024];
    its_own_session session;
    its_own_init(&session, state, memory, sizeof memory);
    for (int i = 0; i < 1024; i++)
        x[i] = (float)i;
    its_own_tensor inputs[ITS_OWN_INPUTS] = {{.data = x, .shape = {1024}}}, outputs[ITS_OWN_OUTPUTS] = {{0}};
    int code = its_own_run(&session, inputs, outputs);
    for (int i = 0; i < ITS_OWN_OUTPUTS; i++) {
        char *data = outputs[i].data;
        printf("%d %d %g\n", code, data >= memory && data < memory + sizeof memory, ((float *)data)[1023]);
    }
    return 0;
}
"""


def test_outputs_are_in_the_memory_of_the_session(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    state, constant = torch.ones(1024), torch.full((1024,), 7.0)

    def its_own(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        state.add_(x)
        return x, state, constant

    smelt.export(its_own, (torch.zeros(1024),)).save_static(tmp_path / "its_own")
    (tmp_path / "main.c").write_text(ITS_OWN)
    subprocess.run([compiler, "-std=c11", "main.c", "its_own.o", "-o", "main"], cwd=tmp_path, check=True)
    done = subprocess.run(tmp_path / "main", capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["0 1 1023", "0 1 1024", "0 1 7"]


def test_files_are_named_after_the_path(tmp_path: Path) -> None:
    artifact = smelt.export(torch.nn.Linear(2, 2).eval(), (torch.randn(1, 2),))
    for given in ("net", "net.o"):
        assert [file.name for file in artifact.save_static(tmp_path / given)] == ["net.o", "net.h"]
    assert "int net_run(" in (tmp_path / "net.h").read_text()
