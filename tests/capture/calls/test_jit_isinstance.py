"""`torch.jit.isinstance` in captured code: an answer by types, which guards keep true."""

import itertools
from typing import Any, Dict, List, Optional, Tuple, Union  # noqa: UP035

import pytest
import torch

from tests.capture.programs import compare

X = torch.randn(3)
KINDS: dict[str, Any] = {
    "list": List[torch.Tensor],  # noqa: UP006
    "dict": Dict[str, torch.Tensor],  # noqa: UP006
    "tuple": Tuple[torch.Tensor, int],  # noqa: UP006
    "nested": List[List[int]],  # noqa: UP006
    "optional": Optional[torch.Tensor],  # noqa: UP045
    "union": Union[int, List[int]],  # noqa: UP006, UP007
    "builtin": list[torch.Tensor],
    "plain": torch.Tensor,
    "several": (int, List[torch.Tensor]),  # noqa: UP006
}
VALUES: list[Any] = [[X, X], [X, 1], {"a": X}, {1: X}, (X, 2), (X, X), [[1], [2, 3]], [[1], ["a"]], None, X, 3, [1, 2]]


@pytest.mark.parametrize("name", KINDS)
def test_it_answers_as_in_eager_without_a_break(name: str) -> None:
    kind = KINDS[name]

    def program(x: torch.Tensor, given: Any) -> torch.Tensor:
        return x + 1 if torch.jit.isinstance(given, kind) else x - 1

    for first, second in itertools.pairwise(VALUES):
        runner = compare(program, X, first, calls=1)
        compare(program, X, second, runner=runner, calls=1)
        assert runner.breaks == []


def test_a_bare_container_raises_as_in_eager() -> None:
    compare(lambda x, given: x + int(torch.jit.isinstance(given, list)), X, [X])
