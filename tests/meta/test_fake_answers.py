"""What is remembered of the meta kernels' answers: by keys that tell apart what differs, and never without bound."""

import threading

import pytest
import torch

from smelt.ir.tensorspec import TensorSpec
from smelt.meta import fake_tensor
from smelt.meta.fake_tensor import FakeMode, FakeTensor

aten = torch.ops.aten


def test_keys_tell_numbers_apart() -> None:
    different = [fake_tensor._freeze(value) for value in (True, 1, 1.0, 0.0, -0.0, False, 0, None, "1", float("nan"))]
    assert len(set(different)) == len(different)
    assert fake_tensor._freeze(float("nan")) == fake_tensor._freeze(float("nan"))
    assert fake_tensor._freeze([1, (2.0,)]) == fake_tensor._freeze([1, (2.0,)])


def test_answers_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_tensor, "_KNOWN_LIMIT", 5)
    fake_tensor.forget()
    with FakeMode():
        for size in range(1, 20):
            x = FakeTensor(TensorSpec.of(torch.ones(size)))
            assert aten.flip.default(x, [0]).shape == (size,)  # no rule: the meta kernel is asked
            assert len(fake_tensor._known) <= 5
    fake_tensor.forget()
    assert not fake_tensor._known


def test_threads_may_ask_at_once() -> None:
    failures: list[BaseException] = []

    def ask(number: int) -> None:
        try:
            for size in range(1, 30):
                x = FakeTensor(TensorSpec.of(torch.ones(size, 2)))
                with FakeMode():
                    assert aten.flip.default(x, [0]).shape == (size, 2)
                    assert aten.add.Tensor(x, number).shape == (size, 2)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_the_mode_does_not_wake_the_other_compiler() -> None:
    """PyTorch wraps a mode's handler in a decorator that imports torch._dynamo, unless told not to."""
    assert FakeMode.__torch_dispatch__.__module__ == fake_tensor.__name__
    assert not hasattr(FakeMode.__torch_dispatch__, "__wrapped__")
