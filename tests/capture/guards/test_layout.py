"""Reading tensors in memory: the layout is found, whatever memory held before, and guards that use it ask no less."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch.overrides import BaseTorchFunctionMode

from smelt._native import Guards
from smelt.torch_abi import tensor_layout
from smelt.torch_abi.probe import Experiment, NotFound
from smelt.torch_abi.tensor_layout import find_layout, install_tensor_layout
from tests.layout import needs_layout


def frozen() -> torch.Tensor:
    return torch.ones(2, 3).requires_grad_().requires_grad_(False)


def swapped() -> torch.Tensor:
    tensor = torch.ones(2, 3, requires_grad=True)
    tensor.data = torch.ones(2, 3, dtype=torch.float64)
    return tensor


def inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(2, 3)


MAKE: dict[str, Callable[[], torch.Tensor]] = {
    "plain": lambda: torch.ones(2, 3),
    "a slice": lambda: torch.ones(4, 3)[1:3],
    "strided": lambda: torch.ones(3, 2).t(),
    "other shape": lambda: torch.ones(3, 3),
    "other rank": lambda: torch.ones(6),
    "float64": lambda: torch.ones(2, 3, dtype=torch.float64),
    "bfloat16": lambda: torch.ones(2, 3, dtype=torch.bfloat16),
    "int32": lambda: torch.ones(2, 3, dtype=torch.int32),
    "meta": lambda: torch.ones(2, 3, device="meta"),
    "negated": lambda: torch._neg_view(torch.ones(2, 3)),
    "conjugated": lambda: torch.ones(2, 3, dtype=torch.complex64).conj(),
    "complex": lambda: torch.ones(2, 3, dtype=torch.complex64),
    "leaf": lambda: torch.ones(2, 3, requires_grad=True),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2, 3)),
    "frozen": frozen,
    "frozen parameter": lambda: torch.nn.Parameter(torch.ones(2, 3), requires_grad=False),
    "computed": lambda: torch.ones(2, 3, requires_grad=True) * 2,
    "all zeros": lambda: torch._efficientzerotensor((2, 3)),
    "another library's": lambda: torch.ones(2, 3).to_mkldnn(),
    "detached": lambda: (torch.ones(2, 3, requires_grad=True) * 2).detach(),
    "view of a leaf": lambda: torch.ones(4, 3, requires_grad=True)[:2],
    "written into": lambda: torch.ones(2, 3).add_(torch.ones(2, 3, requires_grad=True)),
    "data swapped": swapped,
    "inference": inference,
    "six dimensions": lambda: torch.ones(1, 1, 1, 1, 2, 3),
    "six other dimensions": lambda: torch.ones(1, 1, 1, 2, 1, 3),
}


def guards_for(tensor: torch.Tensor) -> Guards:
    check = ("tensor", type(tensor), tensor.dtype, tensor.device, tuple(tensor.shape), tuple(tensor.stride()))
    return Guards(((("slot", 0), ((*check, tensor.requires_grad),), (), True, "x"),))


@pytest.mark.parametrize("kind", MAKE)
def test_memory_says_what_attributes_say(kind: str) -> None:
    install_tensor_layout()
    guards = guards_for(MAKE[kind]())
    for _ in range(3):
        guards.check((MAKE[kind](),))  # learns what the memory of one that passes looks like
    for other, again in itertools.product(MAKE, range(2)):
        tensor = MAKE[other]()
        first_look = guards_for(MAKE[kind]()).check((tensor,))
        assert (guards.check((tensor,)) is None) == (first_look is None), (other, again)


def test_a_tensor_that_changes_under_guards() -> None:
    install_tensor_layout()
    parameter = torch.nn.Parameter(torch.ones(2, 3))
    guards = guards_for(parameter)
    for _ in range(3):
        assert guards.check((parameter,)) is not None
    parameter.requires_grad_(False)
    assert guards.check((parameter,)) is None
    parameter.requires_grad_()
    assert guards.check((parameter,)) is not None
    before = parameter.data
    for data in (before.double(), before.t().contiguous().t(), torch._neg_view(before), torch.ones(3, 2)):
        parameter.data = data
        assert guards.check((parameter,)) is None
        parameter.data = before
        assert guards.check((parameter,)) is not None


def test_a_view_wants_a_gradient_once_its_base_does() -> None:
    install_tensor_layout()
    base = torch.zeros(4, 3)
    view = base[:2]
    guards = guards_for(view)
    for _ in range(3):
        assert guards.check((view,)) is not None
    base.add_(torch.ones(4, 3, requires_grad=True))
    assert guards.check((view,)) is None  # before anything asked the view itself, which then writes it down
    assert view.requires_grad


def test_the_layout_is_found_whatever_memory_held() -> None:
    found = [find_layout()]
    for size, fill in itertools.product(range(96, 400, 16), (0x00, 0x5A, 0xFF)):
        tensor_layout._fill_free_memory(size, fill)
        if fill == 0xFF:
            found.append(find_layout())
    assert len(set(found)) == 1


def test_memory_that_others_let_go_meanwhile_does_not_hinder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors are made there first, and not where the content is known."""
    expected, fill, turns = find_layout(), tensor_layout._fill_free_memory, itertools.count()

    def elsewhere(size: int, pattern: int) -> frozenset[int]:
        filled = fill(size, pattern)
        return filled if next(turns) % 2 else frozenset(range(len(filled)))

    monkeypatch.setattr(tensor_layout, "_fill_free_memory", elsewhere)
    assert find_layout() == expected


def test_deterministic_algorithms_do_not_hinder() -> None:
    """PyTorch fills new memory then, and raises for dtypes of few bits: nothing could be compiled any more."""
    torch.use_deterministic_algorithms(True)
    try:
        find_layout()
        assert torch.utils.deterministic.fill_uninitialized_memory
    finally:
        torch.use_deterministic_algorithms(False)


def test_bits_that_nobody_writes_are_masked_or_nothing_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unseen, such a bit made two keys of one backward, so that it was captured twice."""
    fill = tensor_layout._fill_free_memory
    monkeypatch.setattr(tensor_layout, "_fill_free_memory", lambda size, pattern: fill(size, 0) and frozenset())
    with pytest.raises(NotFound, match="memory of known content"):
        find_layout()


@needs_layout
def test_under_a_mode_nothing_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = Experiment(lambda: pytest.fail("tensors are not what they seem here"), lambda found: None)
    monkeypatch.setattr(tensor_layout, "EXPERIMENT", experiment)
    with BaseTorchFunctionMode():
        install_tensor_layout()
        assert experiment.why_not() == "a mode is active"
    monkeypatch.setattr(experiment, "find", lambda: "a layout")
    install_tensor_layout()
    assert experiment.result == "a layout" and experiment.why_not() is None


@needs_layout
def test_a_default_device_does_not_hinder(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = Experiment(lambda: torch.ones(1).device.type, lambda found: None)
    monkeypatch.setattr(tensor_layout, "EXPERIMENT", experiment)
    with torch.device("meta"):
        install_tensor_layout()
    assert experiment.result == "cpu"


class Lookalike:
    """Has all that a tensor check asks for, and none of it where tensors keep it."""

    dtype, device, shape, requires_grad = torch.float32, torch.device("cpu"), (2, 3), False

    def stride(self) -> tuple[int, int]:
        return (3, 1)

    def is_neg(self) -> bool:
        return False

    def is_conj(self) -> bool:
        return False


def test_what_only_looks_like_a_tensor_is_never_read_as_one() -> None:
    install_tensor_layout()
    check = ("tensor", Lookalike, torch.float32, torch.device("cpu"), (2, 3), (3, 1), False)
    guards = Guards(((("slot", 0), (check,), (), True, "x"),))
    for _ in range(5):
        things = [Lookalike() for _ in range(50)]
        assert all(guards.check([thing]) == (thing,) for thing in things)
    assert guards.check([torch.ones(2, 3)]) is None
