"""A call that fails leaves state as it was, whatever was written before the failure."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import smelt
from smelt.base.errors import SmeltError
from tests.codegen.foreign import runner
from tests.deploy.failing import Tallied, example

ROWS = {"x": {0: smelt.Dimension("rows", 2, 4096)}}


@pytest.fixture(scope="module")
def artifact() -> Any:
    return smelt.export(Tallied(), (example(),), dynamic=ROWS, name="tallied")


def state_of(loaded: Any) -> tuple[float, list[float]]:
    state = loaded.state_dict()
    return state["count"].item(), state["total"].tolist()


def test_an_exception_after_writes_undoes_them(artifact: Any, tmp_path: Path) -> None:
    loaded = smelt.load(artifact.save(tmp_path / "m.smelt"))
    loaded(example())
    loaded(example(value=-1.0))
    assert state_of(loaded) == (2.0, [0.0] * 4)
    for _ in range(2):
        with pytest.raises(SmeltError, match="the total is too large"):
            loaded(example(value=1000.0))
        assert state_of(loaded) == (2.0, [0.0] * 4)
    loaded(example(value=3.0))
    assert state_of(loaded) == (3.0, [3.0] * 4)


SCRIPT = """
import { load } from "./tallied.mjs";
const session = await load(undefined, 64);
const counts = [];
for (const [rows, value] of [[3, 1], [500, 1], [900, -1], [3, 1000], [1000, -1]]) {
  let error = null;
  try {
    session.run({ x: { data: new Float32Array(4 * rows).fill(value), shape: [rows, 4] } });
  } catch (caught) {
    error = caught.message;
  }
  const { count, total } = session.state();
  counts.push([count.value, Array.from(total.data), error]);
}
console.log(JSON.stringify(counts));
"""


def test_webassembly_counts_once_when_memory_grows(artifact: Any, tmp_path: Path) -> None:
    command = runner("wasm32")
    artifact.save_static(tmp_path / "tallied", "wasm32")
    (tmp_path / "main.mjs").write_text(SCRIPT)
    done = subprocess.run([*command, "main.mjs"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [
        [1, [1] * 4, None],
        [2, [2] * 4, None],
        [3, [1] * 4, None],
        [3, [1] * 4, "ValueError: the total is too large"],
        [4, [0] * 4, None],
    ]


PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include "tallied.h"

int main(void)
{
    static _Alignas(64) char state[TALLIED_STATE_BYTES], memory[1 << 20];
    static float x[4 * 512];
    tallied_session session;
    tallied_init(&session, state, memory, 0);
    for (int call = 0; call < 2; call++) {
        int code, tries = 0;
        for (int i = 0; i < 4 * 512; i++)
            x[i] = call ? -1.0f : 1.0f;
        do {
            tallied_tensor inputs[TALLIED_INPUTS] = {{.data = x, .shape = {512, 4}}}, outputs[TALLIED_OUTPUTS] = {{0}};
            code = tallied_run(&session, inputs, outputs);
            if (code == TALLIED_NO_MEMORY)
                session.bytes = session.needed;
            if (code == TALLIED_OK)
                printf("%g %d %d ", *(float *)state, outputs[0].rank, outputs[0].dtype);
        } while (code == TALLIED_NO_MEMORY && ++tries < 100);
        printf("%d %d\n", code, tries > 1);
        session.bytes = 0;
    }
    return 0;
}
"""


def test_c_without_a_loader_counts_once_when_memory_is_missing(artifact: Any, tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    artifact.save_static(tmp_path / "tallied")
    (tmp_path / "main.c").write_text(PROGRAM)
    subprocess.run([compiler, "-std=c11", "main.c", "tallied.o", "-o", "main"], cwd=tmp_path, check=True)
    done = subprocess.run(tmp_path / "main", capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["1 2 8 0 1", "2 2 8 0 1"]
