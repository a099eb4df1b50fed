"""What becomes of an exported function: constants, state, structure of results; and what is refused, with why."""

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import smelt
from smelt.ir.artifact.machine import RegisterKind
from tests.golden import golden
from tests.processes import run_new


class Cached(torch.nn.Module):
    """Writes into a cache, replaces a buffer, counts in a number."""

    cache: torch.Tensor
    last: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.calls = 0
        self.register_buffer("cache", torch.zeros(4, 4))
        self.register_buffer("last", torch.zeros(2, 4))

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        self.calls += 1
        made = self.linear(x) + self.last
        self.cache[1:3] = made
        self.last = made * 0.5
        return {"made": made, "cache": (self.cache, self.cache[1:3].t()), "kind": "cached", "none": None}


def test_machines_print_as_reviewed() -> None:
    torch.manual_seed(0)
    golden("deploy/cached.txt", f"{smelt.export(Cached(), (torch.zeros(2, 4),))}\n")


def test_what_is_written_is_state() -> None:
    torch.manual_seed(0)
    model = Cached()
    artifact = smelt.export(model, (torch.zeros(2, 4),))
    kinds = {each.name: each.kind for each in artifact.machine.registers if each.name}
    assert kinds["linear.weight"] is RegisterKind.CONSTANT
    assert {name for name, kind in kinds.items() if kind is RegisterKind.STATE} == {"cache", "last", "calls"}
    for seed in range(3):
        x = torch.randn(2, 4, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            want = model(x)
        got = artifact(x)
        torch.testing.assert_close(got["made"], want["made"])
        torch.testing.assert_close(got["cache"][0], want["cache"][0])
        torch.testing.assert_close(got["cache"][1], want["cache"][1])
        assert got["kind"] == "cached" and got["none"] is None
    state = artifact.state_dict()
    assert state["calls"].item() == model.calls == 3
    torch.testing.assert_close(state["last"], model.last)


def test_weights_that_share_memory_are_stored_once(tmp_path: Path) -> None:
    tied = torch.nn.Embedding(512, 64)
    head = torch.nn.Linear(64, 512, bias=False)
    head.weight = tied.weight

    def logits(ids: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = head(tied(ids)) + tied.weight[1].sum()
        return made

    artifact = smelt.export(logits, (torch.tensor([3, 5]),))
    assert len(artifact.machine.storages) == 1
    path = artifact.save(tmp_path / "tied.smelt")
    assert path.stat().st_size < tied.weight.nbytes + 100_000
    torch.testing.assert_close(smelt.load(path)(torch.tensor([9, 0])), logits(torch.tensor([9, 0])).detach())


def test_state_is_saved_and_taken_over(tmp_path: Path) -> None:
    torch.manual_seed(0)
    loaded = smelt.load(smelt.export(Cached(), (torch.zeros(2, 4),)).save(tmp_path / "a.smelt"))
    x = torch.randn(2, 4)
    loaded(x)
    again = smelt.load(loaded.save(tmp_path / "b.smelt"))
    torch.testing.assert_close(again(x)["made"], loaded(x)["made"])
    other = loaded.session()
    assert other.state_dict()["calls"].item() == 0
    other.load_state_dict(loaded.state_dict())
    torch.testing.assert_close(other(x)["made"], loaded(x)["made"])
    loaded.reset()
    assert loaded.state_dict()["calls"].item() == 0
    loaded.restore(tmp_path / "b.smelt")
    assert loaded.state_dict()["calls"].item() == 1
    with pytest.raises(smelt.SmeltError, match=r"SM052.*missing"):
        loaded.load_state_dict({})
    with pytest.raises(smelt.SmeltError, match=r"SM052.*calls is int64"):
        loaded.load_state_dict({"calls": torch.zeros(3)}, strict=False)


def test_arrays_in_arrays_out(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 2)
    loaded = smelt.load(smelt.export(model, (torch.zeros(3, 4),)).save(tmp_path / "a.smelt"))
    x = numpy.random.default_rng(0).standard_normal((4, 3)).astype(numpy.float32).T
    found = loaded(x)
    assert isinstance(found, numpy.ndarray)
    numpy.testing.assert_allclose(found, model(torch.from_numpy(x.copy())).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_loading_needs_no_torch(tmp_path: Path) -> None:
    path = smelt.export(torch.nn.Linear(4, 2), (torch.zeros(3, 4),)).save(tmp_path / "a.smelt")
    shown = run_new(
        f"""
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("there is no torch")

sys.meta_path.insert(0, NoTorch())
import numpy
import smelt

model = smelt.load({str(path)!r})
print(model(numpy.ones((3, 4), numpy.float32)).shape, sorted(model.state_dict()))
try:
    smelt.compile
except ImportError as error:
    print(error)
print("torch" in sys.modules)
"""
    )
    lines = shown.stdout.splitlines()
    assert lines[0] == "(3, 2) []" and lines[2] == "False"
    assert lines[1] == "smelt.compile needs PyTorch, which cannot be imported (there is no torch); smelt.load does not"


def _prints(x: torch.Tensor) -> torch.Tensor:
    print("hello", x.shape)
    return x + 1


def _saves(x: torch.Tensor) -> torch.Tensor:
    with open("/tmp/never-written", "w") as file:
        file.write("x")
    return x + 1


_SEEN: list[torch.Tensor] = []


def _appends(x: torch.Tensor) -> torch.Tensor:
    _SEEN.append(x + 1)
    return x


def _writes_argument(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


def _returns_object(x: torch.Tensor) -> Any:
    return x + 1, torch.float32


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (_prints, r"SM060.*print.*test_export\.py:\d+"),
        (_saves, r"SM060.*test_export\.py:\d+"),
        (_appends, r"SM051: _SEEN grows with each call"),
        (_writes_argument, r"SM051: argument x is written in place"),
        (_returns_object, r"SM051: the result holds a dtype"),
    ],
)
def test_what_cannot_be_exported_says_why(function: Any, reason: str) -> None:
    with pytest.raises(smelt.SmeltError, match=reason):
        smelt.export(function, (torch.ones(3),))
    assert not _SEEN


def test_numpy_is_exported_as_what_it_computes(tmp_path: Path) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(numpy.sin(x.numpy())) + 1

    x = torch.linspace(-3, 3, 7)
    loaded = smelt.load(smelt.export(function, (torch.ones(7),)).save(tmp_path / "a.smelt"))
    torch.testing.assert_close(loaded(x), x.sin() + 1)


def test_operators_without_kernels_are_named() -> None:
    with pytest.raises(smelt.SmeltError, match=r"SM031(?s:.)*linalg_qr.*, at .*test_export\.py:\d+"):
        smelt.export(lambda x: torch.linalg.qr(x)[0], (torch.eye(3),))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"args": (3,)}, "SM001"),
        ({"targets": ()}, "SM051"),
        ({"targets": ("pdp11",)}, "pdp11"),
        ({"dynamic": {"y": [0]}}, "SM051.*'y'.*"),
        ({"dynamic": {"x": {7: "n"}}}, "SM051.*numbered 7"),
    ],
)
def test_bad_arguments_of_export(given: dict[str, Any], reason: str) -> None:
    function: Any = 3 if "args" in given else (lambda x: x + 1)
    options = {key: value for key, value in given.items() if key != "args"}
    with pytest.raises(smelt.SmeltError, match=reason):
        smelt.export(function, (torch.ones(3),), **options)


def test_calls_that_do_not_fit() -> None:
    artifact = smelt.export(lambda x, pair: x + pair[0] * pair[1], (torch.ones(3), (torch.ones(3), torch.ones(3))))
    one = torch.ones(3)
    for args in [(one,), (one, (one,)), (one, (one, one.double())), (torch.ones(4), (one, one)), (one, one)]:
        with pytest.raises(smelt.SmeltError, match="SM052"):
            artifact(*args)
    torch.testing.assert_close(artifact(one, (one, one)), one + 1)


class Aliased(torch.nn.Module):
    """Keeps tensors in ways that are one memory, or one object, by two names."""

    def __init__(self) -> None:
        super().__init__()
        self.whole, self.other = torch.zeros(4, 4), torch.zeros(4, 4)
        self.row = self.whole[1]

    def by_view(self, x: torch.Tensor) -> torch.Tensor:
        self.whole.add_(x)
        return self.row * 2

    def by_two_names(self, x: torch.Tensor) -> torch.Tensor:
        made = self.whole + self.other + x
        self.whole = self.other = made
        return made

    def old(self, x: torch.Tensor) -> torch.Tensor:
        before = self.whole
        self.whole = before + x
        return before

    def twice(self, x: torch.Tensor) -> torch.Tensor:
        self.other.add_(x)
        self.other = self.other * 2
        return x


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("by_view", "SM051: .*shares memory with"),
        ("by_two_names", "SM051: .*the same tensor as another"),
        ("old", "SM051: the result is what .*whole was before"),
        ("twice", "SM051: other is written in place, and replaced"),
    ],
)
def test_memory_by_two_names_is_refused(method: str, reason: str) -> None:
    with pytest.raises(smelt.SmeltError, match=reason):
        smelt.export(getattr(Aliased(), method), (torch.ones(4, 4),))
