"""Artifacts as files and objects: saving, pickling, damaged manifests, the command line without torch."""

import copy
import ctypes
import json
import os
import pickle
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import smelt
from smelt.base.errors import SmeltError
from smelt.cli.deploy_cmds import inspected
from smelt.deploy.runtime import LIBRARY, Model, Session, TensorAt, _checked
from smelt.ir.artifact_file.layout import Machine
from smelt.ir.artifact_file.read import read
from smelt.ir.artifact_file.write import save, write
from tests.processes import run, run_new

NO_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("there is no torch")

sys.meta_path.insert(0, NoTorch())
from smelt.cli import main
"""


def counter() -> Any:
    count = torch.zeros(())

    def step(x: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        return x + count

    return smelt.export(step, (torch.zeros(2, 3),), name="counter")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(counter().save(tmp_path_factory.mktemp("files") / "m.smelt"))


def test_inspect_and_cc_need_no_torch(path: Path) -> None:
    script = f"""{NO_TORCH}
codes = [main(["inspect", {str(path)!r}]), main(["cc"]), main(["run", "train.py", "--epochs", "3"])]
print(*codes, "torch" in sys.modules)
"""
    shown = run_new(script)
    assert shown.stdout.startswith("counter: ") and shown.stdout.splitlines()[-1] == "0 0 2 False"
    assert "this command needs PyTorch, which cannot be imported (there is no torch)" in shown.stderr


@pytest.mark.parametrize("saves", ["artifact", "session"])
def test_saving_keeps_links_and_modes(path: Path, tmp_path: Path, saves: str) -> None:
    artifact: Any = counter() if saves == "artifact" else smelt.load(path)
    target, link, fresh = tmp_path / "real.smelt", tmp_path / "link.smelt", tmp_path / "fresh.smelt"
    target.write_bytes(b"old")
    target.chmod(0o600)
    link.symlink_to(target.name)
    artifact.save(link)
    assert link.is_symlink() and target.stat().st_mode & 0o777 == 0o600
    mask = os.umask(0o027)
    try:
        artifact.save(fresh)
    finally:
        os.umask(mask)
    assert fresh.stat().st_mode & 0o777 == 0o640
    assert smelt.load(link)(torch.zeros(2, 3)).sum() == smelt.load(fresh)(torch.zeros(2, 3)).sum() == 6
    assert sorted(each.name for each in tmp_path.iterdir()) == ["fresh.smelt", "link.smelt", "real.smelt"]


@pytest.mark.parametrize("saves", ["artifact", "session"])
def test_threads_may_save_to_one_path(path: Path, tmp_path: Path, saves: str) -> None:
    target = tmp_path / ("m" * 250)  # with no room for an ending
    artifacts: list[Any] = [counter() if saves == "artifact" else smelt.load(path) for _ in range(4)]
    with ThreadPoolExecutor(len(artifacts)) as threads:
        for each in threads.map(lambda artifact: [artifact.save(target) for _ in range(20)], artifacts):
            assert each == [target] * 20
    assert smelt.load(target)(torch.zeros(2, 3)).sum() == 6
    assert list(tmp_path.iterdir()) == [target]


def test_a_link_that_leads_nowhere_is_not_replaced(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.smelt"
    link.symlink_to("missing.smelt")
    with pytest.raises(SmeltError, match="a link that leads nowhere"):
        smelt.load(path).save(link)
    assert list(tmp_path.iterdir()) == [link] and link.is_symlink()


def test_a_process_killed_while_it_saves_leaves_no_file(path: Path, tmp_path: Path) -> None:
    try:
        os.close(os.open(tmp_path, os.O_TMPFILE | os.O_RDWR))
    except OSError:
        pytest.skip("this file system has no files without names")
    script = f"""
import os, signal
from pathlib import Path
from smelt.ir.artifact_file import container, write
from smelt.ir.artifact_file.read import read

artifact = read(Path({str(path)!r}).read_bytes())
container._seal = lambda view, records: os.kill(os.getpid(), signal.SIGKILL)
write.save(artifact, {str(tmp_path / "m.smelt")!r})
"""
    assert run_new(script).returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


def test_a_loaded_artifact_is_pickled_with_its_state(path: Path) -> None:
    loaded = smelt.load(path)
    loaded(torch.zeros(2, 3))
    for other in (pickle.loads(pickle.dumps(loaded)), copy.deepcopy(loaded)):
        assert other(torch.zeros(2, 3))[0, 0] == 2
    assert loaded(torch.zeros(2, 3))[0, 0] == 2
    artifact = counter()
    artifact(torch.zeros(2, 3))
    assert pickle.loads(pickle.dumps(artifact))(torch.zeros(2, 3))[0, 0] == 2


def test_a_str_for_a_tensor_is_refused_by_name(path: Path) -> None:
    with pytest.raises(SmeltError, match="argument x is the str 'three', and must be a tensor"):
        smelt.load(path)("three")


def test_calls_that_make_no_sense_are_refused(path: Path) -> None:
    loaded = smelt.load(path)
    strange = [numpy.zeros(2, dtype=[("a", "f4")]), numpy.array([object()])]
    for value in (*strange, torch.zeros(2).to(torch.float8_e4m3fnuz)):
        with pytest.raises(SmeltError, match=r"SM052.*argument \w+ is .* and must be"):
            loaded(value)
    for threads in (-1, 1025, 2**32 + 1):  # 32 bits of which would be 1
        with pytest.raises(SmeltError, match="threads is from 0 to 1024"):
            smelt.load(path, threads=threads)
    for function in (smelt.load, loaded.save, loaded.restore):
        with pytest.raises(ValueError, match="zero byte"):
            function(f"{path}\0b")


def test_code_for_other_processors_is_named(path: Path, tmp_path: Path) -> None:
    artifact = read(path.read_bytes())
    here = artifact.targets[0].machine
    other = Machine.RISCV64 if here != Machine.RISCV64 else Machine.AARCH64
    part = replace(artifact.targets[0], machine=other, features=0)
    save(replace(artifact, targets=(part,)), tmp_path / "other.smelt")
    name = "riscv64" if other == Machine.RISCV64 else "aarch64"
    with pytest.raises(SmeltError, match=f"this artifact has code for {name}, which does not run here"):
        smelt.load(tmp_path / "other.smelt")


def test_null_is_answered() -> None:
    library = ctypes.CDLL(str(LIBRARY))
    for name in ("smelt_model_name", "smelt_model_target", "smelt_session_model"):
        getattr(library, name).restype = ctypes.c_void_p
        assert getattr(library, name)(None) is None
    library.smelt_model_manifest.restype = ctypes.c_void_p
    assert library.smelt_model_manifest(None, None) is None
    for kind in ("input", "output", "state"):
        getattr(library, f"smelt_model_{kind}").restype = ctypes.c_void_p
        assert getattr(library, f"smelt_model_{kind}_count")(None) == 0
        assert getattr(library, f"smelt_model_{kind}")(None, ctypes.c_size_t(0)) is None
        assert getattr(library, f"smelt_model_find_{kind}")(None, b"x") == -1


def test_inputs_that_are_null_are_told(path: Path) -> None:
    session = Session(Model(path))
    with pytest.raises(SmeltError, match="the inputs are NULL, and the model takes 1"):
        _checked("smelt_run", session._address, None, 1)


ODD: list[Any] = [
    None, 0, -1, 3, 1.5, "x", [], {}, [[]], [None], {"a": 1}, True, ["leaf", [], [], ""], [["literal"]], [[[]]],
]  # fmt: skip


def mutated(value: Any, rng: random.Random) -> Any:
    """With something odd somewhere in it."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value))
        if rng.random() < 0.1:
            return {other: each for other, each in value.items() if other != key}
        return value | {key: mutated(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = rng.randrange(len(value))
        if rng.random() < 0.2:
            return value[:place] + value[place + 1 :]
        return [*value[:place], mutated(value[place], rng), *value[place + 1 :]]
    return rng.choice(ODD)


def test_odd_manifests_are_refused_or_harmless(path: Path, tmp_path: Path) -> None:
    artifact = read(path.read_bytes())
    rng, refused = random.Random(0), 0
    for _ in range(400):
        manifest = mutated(json.loads(json.dumps(artifact.manifest)), rng)
        if not isinstance(manifest, dict):
            continue
        (tmp_path / "odd.smelt").write_bytes(write(replace(artifact, manifest=manifest)))
        try:
            smelt.load(tmp_path / "odd.smelt")(torch.zeros(2, 3))
        except SmeltError:
            refused += 1
        inspected(read((tmp_path / "odd.smelt").read_bytes()), 100)
    assert refused > 50


def test_results_are_where_the_inputs_are(path: Path) -> None:
    shown = run(
        f"""
import torch
import smelt

smelt.lazy.enable()
model = smelt.load({str(path)!r})
result = model(torch.zeros(2, 3, device="lazy"))
print(result.device.type, result.cpu().sum().item(), model(torch.zeros(2, 3)).device.type)
"""
    )
    assert shown.stdout.split() == ["lazy", "6.0", "cpu"]


def test_outputs_stay_where_the_session_has_them(tmp_path: Path) -> None:
    """Also those that are inputs, state or constants."""
    state, constant = torch.zeros(2, 3), torch.full((2, 3), 7.0)

    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        state.add_(x)
        return x, state, constant

    x = torch.ones(2, 3)
    session = Session(Model(smelt.export(step, (x,)).save(tmp_path / "m.smelt")))
    session.run([TensorAt("float32", (2, 3), None, x.data_ptr())])
    outputs = [(ctypes.c_float * 6).from_address(session.output(number).address) for number in range(3)]
    x.zero_()
    session.reset()
    assert [list(each) for each in outputs] == [[1.0] * 6, [1.0] * 6, [7.0] * 6]
    outputs[2][0] = 8.0  # in memory that may be written
