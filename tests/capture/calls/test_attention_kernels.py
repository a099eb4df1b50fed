"""`torch.nn.attention.sdpa_kernel` inside captured code: one graph, and the choice of kernels is put back."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attention

import smelt
from smelt.ir.nodes.ambient import attention_kernels

BACKENDS = ("eager", "aot_eager", "llvm")


def qkv(grad: bool = False) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(2, 4, 8, 16, requires_grad=grad)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = attention_kernels()
    yield
    assert attention_kernels() == before


def one(x: torch.Tensor) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return attention(x, x, x).sin()


def several(x: torch.Tensor) -> torch.Tensor:
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]):
        return attention(x, x, x, is_causal=True)


def in_order(x: torch.Tensor) -> torch.Tensor:
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
        return attention(x, x, x) + len(torch._C._get_sdp_priority_order())


def nested(x: torch.Tensor) -> torch.Tensor:
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]):
        y = attention(x, x, x)
        with sdpa_kernel(SDPBackend.MATH):
            y = attention(y, x, x)
        return attention(y, x, x)


@pytest.mark.parametrize("function", [one, several, in_order, nested])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_block_is_part_of_the_graph(function: Callable[..., Any], backend: str) -> None:
    given, same = qkv(True), qkv(True)
    compiled = smelt.compile(function, backend=backend, fullgraph=True)
    for _ in range(2):
        result, expected = compiled(given), function(same)
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
        result.sum().backward()
        expected.sum().backward()
    torch.testing.assert_close(given.grad, same.grad, rtol=1e-5, atol=1e-5)


def test_the_graph_sets_what_the_block_sets() -> None:
    seen: list[Any] = []

    def look(gm: torch.fx.GraphModule, example: Any) -> Callable[..., Any]:
        seen.append([node.target.__name__ for node in gm.graph.nodes if node.op == "call_function"])
        return gm

    smelt.compile(one, backend=look, fullgraph=True)(qkv())
    (names,) = seen
    assert names[0] == "set_attention" and names.index("scaled_dot_product_attention") < names.index("leave_attention")


def test_a_member_as_an_argument_is_guarded() -> None:
    def chosen(x: torch.Tensor, kernel: Any) -> Any:
        with sdpa_kernel(kernel):
            return attention(x, x, x), torch._C._get_flash_sdp_enabled(), kernel.name

    compiled = smelt.compile(chosen, backend="eager", fullgraph=True)
    for kernel in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
        _, flash, name = compiled(qkv(), kernel)
        assert flash is (kernel == SDPBackend.FLASH_ATTENTION) and name == kernel.name


def test_what_the_caller_has_chosen_is_found_again() -> None:
    def inside(x: torch.Tensor) -> Any:
        with sdpa_kernel(SDPBackend.MATH):
            y = attention(x, x, x)
        return y, torch._C._get_math_sdp_enabled(), torch._C._get_flash_sdp_enabled()

    compiled = smelt.compile(inside, backend="eager", fullgraph=True)
    assert compiled(qkv())[1:] == (True, True)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert compiled(qkv())[1:] == (False, True)
        assert torch._C._get_flash_sdp_enabled() and not torch._C._get_math_sdp_enabled()


def test_a_break_inside_the_block_sees_the_choice() -> None:
    seen: list[bool] = []

    def broken(x: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            y = attention(x, x, x)
            smelt.graph_break()
            seen.append(torch._C._get_flash_sdp_enabled())
            return attention(y, x, x)

    torch.testing.assert_close(smelt.compile(broken, backend="eager")(qkv()), broken(qkv()))
    assert seen == [False, False]


def test_an_error_inside_the_block_leaves_nothing() -> None:
    def failing(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return attention(x, x, x)[places]

    compiled = smelt.compile(failing, backend="eager", fullgraph=True)
    compiled(qkv(), torch.tensor([0]))
    with pytest.raises(IndexError):
        compiled(qkv(), torch.tensor([9]))
