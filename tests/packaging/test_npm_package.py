"""The npm package: packed, installed into an empty folder, and a model run by node as the package's page says."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from smelt.codegen.static.javascript import ARRAYS
from smelt.ir.table.dtypes import DTYPE_NAMES
from tests.codegen.foreign import runner
from tests.packaging.pages import block
from tools.packages import npm, npm_files, version

PAGE = "npm"


def run(argv: list[str], folder: Path) -> str:
    settings = os.environ | {"npm_config_cache": str(folder / ".npm"), "npm_config_update_notifier": "false"}
    done = subprocess.run(argv, cwd=folder, env=settings, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package installed and the model of the page."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm here")
    runner("wasm32")  # node, or the test is left out
    folder = tmp_path_factory.mktemp("project")
    packed = npm(tmp_path_factory.mktemp("packed"))
    (folder / "package.json").write_text("{}")
    run(["npm", "install", "--offline", "--no-audit", "--no-fund", str(packed)], folder)
    code = block(PAGE, "python", "save_static").replace('"model"', f'"{folder}/model"')
    names: dict[str, object] = {}
    exec(code, names)
    model = names["model"]
    assert isinstance(model, torch.nn.Module)
    with torch.no_grad():
        expected = model(torch.zeros(3, 4)).flatten().tolist()
    (folder / "expected.json").write_text(json.dumps(expected))
    return folder


def test_node_runs_the_model_of_the_page(project: Path) -> None:
    code = block(PAGE, "js", "run.mjs").replace("output.data)", "JSON.stringify(Array.from(output.data)))")
    (project / "run.mjs").write_text(code)
    printed = run(["node", "run.mjs"], project)
    assert printed.startswith("[ 3, 2 ] float32 [")
    expected = json.loads((project / "expected.json").read_text())
    assert json.loads(printed.removeprefix("[ 3, 2 ] float32 ")) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "source",
    [
        '"model.wasm"',
        'await readFile("model.wasm")',
        'await WebAssembly.compile(await readFile("model.wasm"))',
    ],
)
def test_a_model_is_a_path_or_bytes_or_a_module(project: Path, source: str) -> None:
    code = (
        'import { readFile } from "node:fs/promises";\nimport { load } from "smelt-runtime";\n'
        f"const session = await load({source});\n"
        "console.log(session.run({ input: { data: new Float32Array(4), shape: [1, 4] } }).output.shape);\n"
    )
    (project / "other.mjs").write_text(code)
    assert run(["node", "other.mjs"], project) == "[ 1, 2 ]\n"


def test_another_module_is_refused(project: Path) -> None:
    code = (
        'import { load } from "smelt-runtime";\n'
        "await load(Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0)).catch((error) => console.log(error.message));\n"
    )
    (project / "wrong.mjs").write_text(code)
    assert run(["node", "wrong.mjs"], project).startswith("this module is no model")


def test_types_fit_the_model(project: Path) -> None:
    compiler = shutil.which("tsc")
    if compiler is None:
        pytest.skip("there is no TypeScript compiler here")
    (project / "use.mts").write_text(
        block(PAGE, "ts", "Session")
        + "const { output } = session.run({ input: { data: new Float32Array(4), shape: [1, 4] } });\n"
        + "const numbers: Float32Array | undefined = output?.data;\nconsole.log(numbers);\n"
        + "// @ts-expect-error: the wrong array\n"
        + "session.run({ input: { data: new Float64Array(4), shape: [1, 4] } });\n"
        + 'const any = await load("model.wasm");\nconsole.log(any.run({ input: 3 })["output"]?.shape);\n'
    )
    flags = ["--noEmit", "--strict", "--target", "esnext", "--module", "nodenext", "--lib", "esnext,dom"]
    run([compiler, *flags, "use.mts"], project)


def test_npm_packs_the_same(tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("there is no npm here")
    for name, data in npm_files().items():
        (tmp_path / name).write_bytes(data)
    (packed,) = json.loads(run(["npm", "pack", "--json"], tmp_path))
    assert packed["filename"] == f"smelt-runtime-{version()}.tgz"
    assert {file["path"] for file in packed["files"]} == set(npm_files())


def test_arrays_of_dtypes_are_those_of_python() -> None:
    text = npm_files()["index.mjs"].decode()
    rows = text[text.index("const arrays = {") : text.index("};")].split("\n", 1)[1]
    arrays = dict(row.strip().replace('"', "").split(": ") for row in rows.replace("\n", " ").split(",") if row.strip())
    assert arrays == ARRAYS and list(arrays) == list(DTYPE_NAMES)
