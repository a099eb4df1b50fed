"""The JavaScript binding of WebAssembly models: what it takes, what it refuses and why, state, and types."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from tests.codegen.foreign import runner
from tests.deploy.test_control_flow import by_mode


def in_node(folder: Path, artifact: Any, body: str) -> Any:
    """What `body`, which has `session` and `caught(call)`, returns."""
    command = runner("wasm32")
    artifact.save_static(folder / "model", "wasm32")
    (folder / "main.mjs").write_text(
        'import { load } from "./model.mjs";\n'
        "const session = await load();\n"
        "const caught = (call) => {\n"
        "  try { return [call(), null]; } catch (e) { return [e instanceof Error, e.message]; }\n"
        "};\n"
        f"const result = (() => {{ {body} }})();\n"
        'console.log(JSON.stringify(result, (_, v) => (typeof v === "bigint" ? `${v}n` : v)));\n'
    )
    done = subprocess.run([*command, "main.mjs"], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def scaled(x: torch.Tensor, n: int, scale: float, flag: bool) -> Any:
    y = x * scale + n
    return (y, y.sum()) if flag else (y.t(), y.sum())


WRONG: dict[str, tuple[str, str]] = {
    "plain array": (
        "{ data: [1, 2, 3, 4], shape: [2, 2] }",
        "data is a plain array, and must be a Float32Array (float32)",
    ),
    "float64": ("{ data: new Float64Array(4), shape: [2, 2] }", "data is Float64Array, and must be a Float32Array"),
    "int32": ("{ data: new Int32Array(4), shape: [2, 2] }", "data is Int32Array, and must be a Float32Array"),
    "no data": ("{ shape: [2, 2] }", "data is undefined, and must be a Float32Array"),
    "short": ("{ data: new Float32Array(3), shape: [2, 2] }", "data has 3 elements, and its shape [2,2] 4"),
    "rank": ("{ data: new Float32Array(4), shape: [4] }", "has 1 dimensions, and must have 2"),
    "no shape": ("{ data: new Float32Array(4) }", "shape is missing"),
    "fraction": ("{ data: new Float32Array(4), shape: [1.5, 2] }", "sizes are whole numbers"),
    "bounds": (
        "{ data: new Float32Array(2 * 65), shape: [65, 2] }",
        "dimension 0 rows is 65, and must be from 2 to 64",
    ),
    "fixed": ("{ data: new Float32Array(6), shape: [2, 3] }", "dimension 1 is 3, and must be 2"),
    "number": ("3", "is a number, and must be { data, shape } with 2 dimensions"),
    "missing": ("undefined", "input x is missing"),
}


@pytest.fixture(scope="module")
def artifact() -> Any:
    dynamic = {"x": {0: smelt.Dimension("rows", 2, 64)}, "n": True, "scale": True}
    return smelt.export(scaled, (torch.ones(3, 2), 4, 0.5, True), dynamic=dynamic)


def test_wrong_tensors_are_refused_with_a_sentence(artifact: Any, tmp_path: Path) -> None:
    calls = ", ".join(
        f"caught(() => session.run({{ x: {given}, n: 1, scale: 2, flag: true }}))" for given, _ in WRONG.values()
    )
    for (is_error, message), (_, expected) in zip(
        in_node(tmp_path, artifact, f"return [{calls}];"), WRONG.values(), strict=True
    ):
        assert is_error is True and expected in message


def test_wrong_numbers_are_refused_with_a_sentence(artifact: Any, tmp_path: Path) -> None:
    x = "x: { data: new Float32Array(4), shape: [2, 2] }"
    given = ["n: 1.5", "n: true", "scale: 1n", "scale: '2'", "flag: 1", "m: 3", "flag: undefined"]
    good = {"n": "n: 1", "scale": "scale: 2", "flag": "flag: true"}
    calls = []
    for each in given:
        fields = [text for name, text in good.items() if name != each.partition(":")[0]]
        calls.append(f"caught(() => session.run({{ {', '.join([x, *fields, each])} }}))")
    found = in_node(tmp_path, artifact, f"return [{', '.join(calls)}];")
    assert [is_error for is_error, _ in found] == [True] * len(given)
    expected = ["must be int64", "must be int64", "must be float64", "must be a Float64Array", "must be bool"]
    expected += ["there is no input m; choose from x, n, scale, flag", "input flag is missing"]
    for (_, message), part in zip(found, expected, strict=True):
        assert part in message


def test_numbers_are_given_and_returned_as_numbers(artifact: Any, tmp_path: Path) -> None:
    body = """
      const x = { data: Float32Array.of(1, 2, 3, 4), shape: [2, 2] };
      return [true, false].map((flag) => Object.values(session.run({ x, n: flag ? 3 : 3n, scale: 0.5, flag })));
    """
    straight, transposed = in_node(tmp_path, artifact, body)
    assert straight[0] == {"data": {"0": 3.5, "1": 4, "2": 4.5, "3": 5}, "shape": [2, 2], "dtype": "float32"}
    assert straight[1]["value"] == 17 and straight[1]["shape"] == []
    assert list(transposed[0]["data"].values()) == [3.5, 4.5, 4, 5]


def ranks(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x.sum(0)
    if x.sum() < -100:
        return x.reshape(3, 2, 1) > 0
    return x.sum()


def test_outputs_have_the_rank_and_dtype_of_their_branch(tmp_path: Path) -> None:
    body = """
      const run = (value) => session.run({ x: { data: new Float32Array(6).fill(value), shape: [3, 2] } }).output;
      return [1, -1, -100].map(run);
    """
    found = in_node(tmp_path, smelt.export(ranks, (torch.ones(3, 2),)), body)
    for each, value in zip(found, (1.0, -1.0, -100.0), strict=True):
        expected = ranks(torch.full((3, 2), value))
        assert each["shape"] == list(expected.shape) and f"torch.{each['dtype']}" == str(expected.dtype)
        assert list(each["data"].values()) == expected.flatten().tolist()
    assert found[1]["value"] == -6


def test_choices_are_given_by_their_text(tmp_path: Path) -> None:
    artifact = smelt.export(by_mode, (torch.ones(3), "double", 0.5), dynamic={"mode": ["double", "half"]})
    body = """
      const x = { data: Float32Array.of(1, 2, 3) };
      const run = (mode) => Array.from(session.run({ x, mode, scale: 0.5 }).output.data);
      return [run("double"), run("half"), caught(() => run("third"))];
    """
    found = in_node(tmp_path, artifact, body)
    assert found == [[2, 4, 6], [0.5, 1, 1.5], [True, 'input mode must be one of "double", "half"']]


def test_state_is_read_written_and_reset(tmp_path: Path) -> None:
    total = torch.zeros(2, 3).t()  # of strides that are not contiguous
    count = torch.zeros((), dtype=torch.int64)

    def add(x: torch.Tensor) -> torch.Tensor:
        total.add_(x)
        count.add_(1)
        return total * 2

    body = """
      const x = { data: Float32Array.of(1, 2, 3, 4, 5, 6), shape: [3, 2] };
      session.run({ x });
      const saved = session.state();
      session.run({ x });
      const later = session.state();
      session.loadState(saved);
      const restored = session.state();
      session.reset();
      const wrong = [
        caught(() => session.loadState({ other: saved.total })),
        caught(() => session.loadState({ total: { data: new Float32Array(6), shape: [2, 3] } })),
        caught(() => session.loadState({ count: saved.total })),
      ];
      return [saved, later, restored, session.state(), wrong];
    """
    saved, later, restored, first, wrong = in_node(tmp_path, smelt.export(add, (torch.ones(3, 2),)), body)
    elements: Callable[[Any], list[Any]] = lambda state: list(state["total"]["data"].values())  # noqa: E731
    assert saved["count"]["value"] == "1n" and saved["total"]["shape"] == [3, 2]
    assert elements(saved) == [1, 2, 3, 4, 5, 6] and elements(later) == [2, 4, 6, 8, 10, 12]
    assert restored == saved and elements(first) == [0] * 6 and first["count"]["value"] == "0n"
    messages = [message for _, message in wrong]
    assert messages[0].startswith("there is no state other") and "has the shape [3,2], not [2,3]" in messages[1]
    assert "must be a BigInt64Array (int64)" in messages[2]


USE = """
import { load, type Outputs } from "./model.mjs";
const session = await load();
const outputs: Outputs = session.run({ x: { data: new Float32Array(4), shape: [2, 2] }, n: 1, scale: 2, flag: true });
const sum: Float32Array | undefined = Object.values(outputs)[1]?.data as Float32Array | undefined;
session.loadState(session.state());
// @ts-expect-error: the wrong array
session.run({ x: { data: new Float64Array(4), shape: [2, 2] }, n: 1, scale: 2, flag: true });
// @ts-expect-error: an input is missing
session.run({ x: { data: new Float32Array(4), shape: [2, 2] } });
console.log(sum);
"""


def test_types_are_written_beside_the_module(artifact: Any, tmp_path: Path) -> None:
    written = artifact.save_static(tmp_path / "model", "wasm32")
    assert (tmp_path / "model.d.mts") in written
    text = (tmp_path / "model.d.mts").read_text()
    assert '  "x": Given<Float32Array>;' in text and '  "n": number | bigint | Given<BigInt64Array>;' in text
    compiler = shutil.which("tsc")
    if compiler is None:
        return
    (tmp_path / "use.mts").write_text(USE)
    argv = [
        compiler,
        "--noEmit",
        "--strict",
        "--target",
        "esnext",
        "--module",
        "nodenext",
        "--lib",
        "esnext,dom",
        "use.mts",
    ]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
