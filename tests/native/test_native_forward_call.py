"""A graph without gradients called from C: what it asks first, what it does with results and errors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

import smelt
from smelt import _native


def forward_call(run: Callable[..., Any], **others: Any) -> _native.ForwardCall:
    objects = {
        "run": run,
        "general": lambda *inputs: ("general", *inputs),
        "in_transform": torch._C._are_functorch_transforms_active,
        "in_autocast": torch._C._is_any_autocast_enabled,
        "grad_mode": torch._C.is_grad_enabled,
        "module": forward_ad.__dict__,
        "level": "_current_level",
        "failure": KeyError,
        "failed": lambda inputs, error: ("failed", inputs, error),
        "is_view": torch._C.TensorBase._is_view,
        "detach": torch._C.TensorBase.detach,
    }
    return _native.ForwardCall(**(objects | others))


def test_runs_without_grad_mode_and_restores_it() -> None:
    call = forward_call(lambda x: [x + 1, torch.tensor(torch.is_grad_enabled())])
    result, mode = call(torch.ones(2, requires_grad=True))
    assert torch.is_grad_enabled() and not mode.item() and not result.requires_grad


def test_detaches_results_that_are_views() -> None:
    whole = torch.ones(4)
    with torch.no_grad():
        view = whole[1:3]
    kept, detached = forward_call(lambda: (whole, view))()
    assert kept is whole and not detached._is_view() and detached.data_ptr() == view.data_ptr()


def test_calls_the_general_function_under_autocast_transforms_and_forward_mode() -> None:
    call = forward_call(lambda x: (x,))
    x = torch.ones(3)
    with torch.autocast("cpu"):
        assert call(x)[0] == "general"
    with forward_ad.dual_level():
        assert call(x)[0] == "general"
    seen: list[Any] = []
    torch.func.vmap(lambda each: (seen.append(call(each)[0]), each)[1])(x)
    assert seen == ["general"] and call(x)[0] is x


def test_recovers_from_one_class_of_errors_only() -> None:
    def fails(error: Exception) -> Any:
        raise error

    call = forward_call(fails)
    error = KeyError("one")
    assert call(error) == ("failed", (error,), error)
    with pytest.raises(ValueError, match="two"):
        call(ValueError("two"))
    with pytest.raises(TypeError, match="keyword"):
        call(x=1)


def test_errors_of_questions_and_of_results_reach_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        forward_call(lambda: (), in_transform=lambda: 1 // 0)()
    with pytest.raises(TypeError):
        forward_call(lambda: (None,))()
    with pytest.raises(TypeError):
        forward_call(lambda: 3)()


def test_guards_answer_for_grad_mode_and_autocast() -> None:
    compiled = smelt.compile(lambda x: x.t() @ x)
    x = torch.randn(8, 8)
    expected = x.t() @ x
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(compiled(x), expected)
        with torch.autocast("cpu"):  # the guards of the entry before fail, so it is not called
            assert compiled(x).dtype == torch.bfloat16
        torch.testing.assert_close(compiled(x), expected)
    leaf = x.clone().requires_grad_()
    assert compiled(leaf).requires_grad
