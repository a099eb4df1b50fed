"""`with smelt.disable():` runs a block in plain Python, wherever it stands."""

import threading

import pytest
import torch

import smelt


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + int(smelt.is_compiling())


def test_a_call_of_compiled_code() -> None:
    smelt.reset()
    compiled = smelt.compile(doubled, backend="eager")
    with smelt.disable():
        assert compiled(torch.ones(1)).item() == 2
    assert smelt.counters["graphs"] == 0
    assert compiled(torch.ones(1)).item() == 3
    with smelt.disable(), smelt.disable():
        assert compiled(torch.ones(1)).item() == 2
    assert compiled(torch.ones(1)).item() == 3


def test_a_block_inside_compiled_code() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        with smelt.disable():
            x = doubled(x)
        return x + 10

    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x) * 3 + int(smelt.is_compiling())

    smelt.reset()
    compiled = smelt.compile(outer, backend="eager")
    for _ in range(3):
        assert compiled(torch.ones(1)).item() == (2 * 2 + 10) * 3 + 1
    assert smelt.counters["graphs"] == 2  # before the block, and what the caller does after it


def test_errors_leave_the_block() -> None:
    smelt.reset()
    compiled = smelt.compile(doubled, backend="eager")
    with pytest.raises(ValueError, match="mine"), smelt.disable():
        raise ValueError("mine")
    assert compiled(torch.ones(1)).item() == 3


def test_one_thread_does_not_disable_another() -> None:
    smelt.reset()
    compiled = smelt.compile(doubled, backend="eager")
    seen: list[float] = []
    with smelt.disable():
        thread = threading.Thread(target=lambda: seen.append(compiled(torch.ones(1)).item()))
        thread.start()
        thread.join()
        assert compiled(torch.ones(1)).item() == 2
    assert seen == [3]


def test_a_decorator_with_brackets() -> None:
    @smelt.disable()
    def plain(x: torch.Tensor) -> torch.Tensor:
        return doubled(x)

    assert smelt.compile(plain, backend="eager")(torch.ones(1)).item() == 2


def test_a_block_whose_end_comes_after_its_function() -> None:
    kept = smelt.disable()

    def enters(x: torch.Tensor) -> torch.Tensor:
        kept.__enter__()
        return x + 1

    smelt.reset()
    compiled = smelt.compile(enters, backend="eager")
    compiled(torch.ones(1))
    try:
        assert smelt.compile(doubled, backend="eager")(torch.ones(1)).item() == 2
    finally:
        kept.__exit__(None, None, None)
    assert smelt.compile(doubled, backend="eager")(torch.ones(1)).item() == 3
