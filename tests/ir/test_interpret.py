"""The reference interpreter against PyTorch itself."""

import pytest
import torch

from tests.ir.kernels import COLUMN_SUM, LAYER_NORM, SOFTMAX, sized
from tests.ir.test_check import PROGRAM
from tests.kernel_reference import run_kernel, run_program
from tests.kernel_text import parse_kernel


def test_softmax() -> None:
    x, y = torch.randn(5, 7), torch.empty(5, 7)
    run_kernel(parse_kernel(sized(SOFTMAX, 5, 7)), [x, y])
    torch.testing.assert_close(y, x.softmax(1))


def test_layer_norm() -> None:
    x, w, b = torch.randn(5, 7), torch.randn(7), torch.randn(7)
    y, mean = torch.empty(5, 7), torch.empty(5)
    run_kernel(parse_kernel(sized(LAYER_NORM, 5, 7)), [x, w, b, y, mean])
    torch.testing.assert_close(y, torch.layer_norm(x, (7,), w, b))
    torch.testing.assert_close(mean, x.mean(1))


def test_folds_over_rows() -> None:
    x, y, total = torch.randn(5, 7), torch.empty(7), torch.empty(1)
    run_kernel(parse_kernel(sized(COLUMN_SUM, 5, 7)), [x, y, total])
    torch.testing.assert_close(y, x.sum(0))
    torch.testing.assert_close(total, x.sum().reshape(1))


def test_storage_offset_is_the_first_element() -> None:
    base = torch.arange(10.0)
    y = torch.zeros(6)
    kernel = parse_kernel(
        "kernel k rows() cols(j:3)\n in x: f32[5]\n out y: f32[3]\n loop:\n a = load x[-2*j + 4]\n store y[j] = a"
    )
    run_kernel(kernel, [base[2:], y[1:]])
    assert y.tolist() == [0, 6, 4, 2, 0, 0]


def test_empty_folds_give_the_neutral_element() -> None:
    kernel = parse_kernel(
        "kernel k rows(i:2) cols(j:0)\n in x: f32[0]\n out y: f32[2]\n out z: f32[1]\n"
        " loop:\n a = load x[j]\n m = reduce max a\n s = reduce sum a\n"
        " row:\n store y[i] = m\n accumulate sum z[0] = s"
    )
    y, z = torch.zeros(2), torch.ones(1)
    run_kernel(kernel, [torch.empty(0), y, z])
    assert y.tolist() == [float("-inf")] * 2 and z.tolist() == [0]


def test_wrong_tensors_are_refused() -> None:
    kernel = parse_kernel(sized(SOFTMAX, 5, 7))
    with pytest.raises(ValueError, match="takes 2 tensors"):
        run_kernel(kernel, [torch.empty(35)])
    with pytest.raises(ValueError, match="buffer x is"):
        run_kernel(kernel, [torch.empty(35, dtype=torch.float64), torch.empty(35)])


def test_program_of_kernels_and_library_calls() -> None:
    x = torch.randn(8)
    y, nothing = run_program(PROGRAM, [x])
    assert nothing is None
    torch.testing.assert_close(y, 4 * x + 2 * x * PROGRAM.constants[0][1])
