"""Files with several entry points: one state and one copy of the weights for all of them."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import smelt
from smelt.base.errors import SmeltError
from smelt.ir.artifact_file.container import pack, unpack
from smelt.ir.artifact_file.read import read
from smelt.ir.artifact_file.write import write
from tests.deploy.programs import built, run


class Box:
    """A sum of what was put into it, times a weight."""

    def __init__(self) -> None:
        self.weight = torch.full((64, 64), 0.5)
        self.sum = torch.zeros(())
        self.calls = 0

    def put(self, number: torch.Tensor) -> None:
        self.sum.add_(number * self.weight[3, 3])

    def get(self) -> torch.Tensor:
        return self.sum + 0 * self.weight.sum()

    def count(self, number: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return number * self.calls

    def counted(self, number: torch.Tensor) -> torch.Tensor:
        return number + self.calls


NUMBER = (torch.tensor(2.0),)


def box_artifact() -> smelt.Artifact:
    box = Box()
    return smelt.export_entries({"put": smelt.Entry(box.put, NUMBER), "get": smelt.Entry(box.get)}, name="box")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return box_artifact().save(tmp_path_factory.mktemp("box") / "box.smelt")


def test_entry_points_share_state(path: Path) -> None:
    box = smelt.load(path)
    assert (box.name, box.entries) == ("box", ("put", "get"))
    box.entry("put")(torch.tensor(3.0))
    box.entry("put")(torch.tensor(5.0))
    assert box.entry("get")() == 4
    assert box.state_dict() == {"sum": torch.tensor(4.0)}
    assert box.session().entry("get")() == 0
    box.reset()
    assert box.entry("get")() == 0


def test_calling_the_artifact_calls_the_first_entry_point(path: Path) -> None:
    box = smelt.load(path)
    box(torch.tensor(3.0))
    assert box.entry("get")() == 1.5
    with pytest.raises(SmeltError, match="no entry point 'take'"):
        box.entry("take")


def test_weights_are_stored_once(path: Path) -> None:
    artifact = read(path.read_bytes())
    assert artifact.entries == 2
    assert artifact.weights.bytes == 4 * 64 * 64
    assert [part.table.name for part in artifact.targets] == ["box.put", "box.get"]


def test_checkpoints_hold_the_state_of_all_entry_points(path: Path, tmp_path: Path) -> None:
    box = smelt.load(path)
    box.entry("put")(torch.tensor(8.0))
    saved = smelt.load(box.save(tmp_path / "saved.smelt"))
    assert saved.entry("get")() == 4
    assert copy.deepcopy(box).entry("get")() == 4
    other = smelt.load(path)
    other.restore(tmp_path / "saved.smelt")
    assert other.entry("get")() == 4


def test_an_artifact_in_the_process_runs_its_entry_points() -> None:
    artifact = box_artifact()
    artifact.entry("put")(torch.tensor(6.0))
    assert artifact.entry("get")() == 3
    with pytest.raises(SmeltError, match="one entry point"):
        artifact.save_static("box")


def test_c_chooses_entry_points_by_name(path: Path, tmp_path: Path) -> None:
    shown = run(built("tests/deploy/entry_points.c", tmp_path), path, 3, 5)
    assert shown.splitlines() == ["box: 2 entry points, put takes number", "4, of input 3"]


def test_several_targets_have_all_entry_points(tmp_path: Path) -> None:
    box = Box()
    entries = {"put": smelt.Entry(box.put, NUMBER), "get": smelt.Entry(box.get)}
    artifact = smelt.export_entries(entries, targets=("host", "aarch64", "sm_80"))
    file = read(artifact.save(tmp_path / "box.smelt").read_bytes())
    assert len(file.targets) == 6
    loaded = smelt.load(tmp_path / "box.smelt")
    loaded.entry("put")(torch.tensor(4.0))
    assert loaded.entry("get")() == 2


def test_numbers_of_python_that_another_entry_point_changes_are_refused() -> None:
    box = Box()
    with pytest.raises(SmeltError, match=r"calls is changed by model\.count, and model\.counted reads it") as caught:
        smelt.export_entries({"count": smelt.Entry(box.count, NUMBER), "counted": smelt.Entry(box.counted, NUMBER)})
    assert "tensors" in caught.value.hint


def test_names_are_identifiers() -> None:
    with pytest.raises(SmeltError, match="names are identifiers"):
        smelt.export_entries({"a.b": smelt.Entry(Box().get)})


def test_files_with_other_entry_points_than_they_say_are_refused(path: Path, tmp_path: Path) -> None:
    file = read(path.read_bytes())
    put, get = file.targets
    renamed = replace(get, table=replace(get.table, name="box.put"))
    plain = replace(get, table=replace(get.table, name="get"))
    for targets, reason in (
        ((put, renamed), "name: another has it"), ((put, plain), "name: it is not MODEL.ENTRY"),
        ((get, put), "entry points are not the file's"),
    ):  # fmt: skip
        (tmp_path / "other.smelt").write_bytes(write(replace(file, targets=targets)))
        with pytest.raises(SmeltError, match=reason):
            smelt.load(tmp_path / "other.smelt")


def test_the_c_library_refuses_an_entry_point_with_another_state(path: Path, tmp_path: Path) -> None:
    model = smelt.export(lambda x: x + 1, NUMBER, name="box.get").save(tmp_path / "other.smelt")
    sections, others = unpack(path.read_bytes()), unpack(model.read_bytes())
    put, get = sections[1:3], [replace(each, target=0) for each in others[1:3]]
    (tmp_path / "mixed.smelt").write_bytes(pack([sections[0], *put, *get, *sections[5:]]))
    with pytest.raises(SmeltError, match="state: it is not that of the first"):
        smelt.load(tmp_path / "mixed.smelt")
    apart = [replace(each, target=1) for each in sections[3:5]]
    (tmp_path / "apart.smelt").write_bytes(pack([sections[0], *put, *apart, *put, *apart, *sections[5:]]))
    with pytest.raises(SmeltError, match="SM050"):
        smelt.load(tmp_path / "apart.smelt")


def test_state_of_zeros_takes_no_place_on_the_disk(tmp_path: Path) -> None:
    cache = torch.zeros(4 << 20, dtype=torch.uint8)
    path = smelt.export(lambda: cache.add_(1).sum(), ()).save(tmp_path / "cache.smelt")
    assert path.stat().st_size > cache.numel() > 512 * path.stat().st_blocks
    assert smelt.load(path)() == cache.numel()
