"""Looking into PyTorch's memory: the technique finds what is there, and the switch turns all of it off."""


import pytest
import torch

from smelt.explain.doctor import examine
from smelt.torch_abi import probe
from smelt.torch_abi.probe import SWITCH, WORD, Experiment, NotFound, find_body, find_place, only, read_words
from tests.layout import needs_layout
from tests.processes import run


def test_the_number_of_dimensions_is_found() -> None:
    tensors = [torch.empty(3), torch.empty(3, 4), torch.empty(3, 4, 5)]
    rows = [read_words(tensor._cdata, 16) for tensor in tensors]
    place = find_place(rows, [1, 2, 3], "the number of dimensions")
    other = torch.empty(2, 2, 2, 2)
    assert read_words(other._cdata, 16)[place] == 4
    assert read_words(id(other) + find_body(tensors), 1) == [other._cdata]


def test_what_is_missing_or_ambiguous_is_not_found() -> None:
    assert find_place([[7, 1, 5], [7, 2, 6]], [1, 2], "it") == 1
    assert find_place([[1, 1, 5], [2, 2, 6]], [1, 2], "it", first=1) == 1
    with pytest.raises(NotFound, match="it: 2 places fit"):
        find_place([[1, 1, 5], [2, 2, 6]], [1, 2], "it")
    with pytest.raises(NotFound, match="it: 0 places fit"):
        find_place([[1, 1, 5], [2, 2, 6]], [5, 5], "it")
    with pytest.raises(NotFound, match="it: 0 places fit"):
        only([], "it")


@needs_layout
def test_an_experiment_is_done_once_and_says_why_it_failed() -> None:
    done: list[str] = []
    good = Experiment(lambda: done.append("find") or 3 * WORD, lambda found: done.append(f"install {found}"))
    assert good.why_not() is None and good.why_not() is None
    assert (good.result, done) == (24, ["find", "install 24"])

    def fail() -> int:
        done.append("fail")
        raise NotFound("nothing of the kind")

    bad = Experiment(fail, lambda found: pytest.fail("nothing was found"))
    assert bad.why_not() == bad.why_not() == "nothing of the kind"
    assert bad.result is None and done.count("fail") == 1


@pytest.mark.parametrize("value", ["1", "yes"])
def test_the_switch_turns_experiments_off(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, value)
    experiment = Experiment(lambda: pytest.fail("looked into memory"), lambda found: None)
    assert experiment.why_not() == probe.why_not_probe() == "switched off by SMELT_NO_LAYOUT"
    monkeypatch.setenv(SWITCH, "0")
    assert probe.why_not_probe() is None


@needs_layout
def test_doctor_says_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def layouts() -> str:
        return next(str(check) for check in examine(lambda *args, **kwargs: None) if check.name == "layouts")

    found = layouts()
    assert "ok" in found and "PyTorch's memory: tensor layout, autograd nodes, " in found
    assert found.endswith(" exported functions")
    monkeypatch.setenv(SWITCH, "1")
    assert "PyTorch's memory: switched off by SMELT_NO_LAYOUT" in layouts()


NOTHING_IS_READ = """
import torch, smelt
from smelt import _native
from smelt.runtime.overlap import overlap
from smelt.torch_abi import aoti_shims, node_layout, tensor_layout
from smelt.torch_abi.node_layout import materializes

model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 3))
x = torch.randn(4, 6)
model(x).square().sum().backward()
wanted = [each.grad for each in model.parameters()]
model.zero_grad()
smelt.config.compiled_autograd = True
compiled = smelt.compile(model, fullgraph=True, options={"fallback": False})
for _ in range(3):
    model.zero_grad()
    compiled(x).square().sum().backward()
for each, want in zip(model.parameters(), wanted, strict=True):
    torch.testing.assert_close(each.grad, want)
assert smelt.counters["graphs"] == 1 and smelt.counters["compiled_autograd_captures"] == 0
assert overlap((x, x[1:]), (0,)) and not overlap((x, x.clone()), (0,))
assert _native.overlap([x, x], (0,)) is None and _native.storages([x]) is None
for module in (aoti_shims, node_layout, tensor_layout):
    assert module.EXPERIMENT.result is None, module


class Passing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


assert materializes(Passing.apply(x.requires_grad_()).grad_fn) is None
print("right")
"""


def test_nothing_is_read_where_it_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "1")
    ran = run(NOTHING_IS_READ, warns=False)
    assert ran.stdout == "right\n", ran.stderr
