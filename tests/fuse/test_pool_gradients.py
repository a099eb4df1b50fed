"""Gradients of max pooling as a GPU computes them: each element looks at its windows."""

import pytest
import torch
from torch import nn

from smelt.base.options import Options
from smelt.codegen.gpu.bodies.points_body import Points
from smelt.codegen.gpu.cuda_target import describe_cuda
from smelt.codegen.gpu.grid_plan import plan
from smelt.ir.kernel import Gather, Kernel
from smelt.ir.program import Launch, Library
from tests.absent_device.ahead import Ahead, compile_ahead, spec_like
from tests.codegen.gpu.on_host import OnHost
from tests.kernel_reference import run_kernel

aten = torch.ops.aten


def _pooled(pool: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> Ahead:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.pool = nn.Parameter(torch.ones(shape[1], 1, 1)), pool

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.pool((x * self.scale).exp())
            return y * y

    return compile_ahead(Model().to(dtype), [spec_like(shape, dtype)], Options(target="sm_90"))


def _gradient_kernel(ahead: Ahead) -> Kernel:
    assert ahead.backward is not None
    assert not any(isinstance(step, Library) for step in ahead.backward.steps)
    kernels = [step.kernel for step in ahead.backward.steps if isinstance(step, Launch)]
    (kernel,) = (each for each in kernels if isinstance(each, Kernel) and "max_pool2d" in each.name)
    return kernel


CASES = [((3, 3), (2, 2), (1, 1)), ((3, 2), (2, 1), (1, 0)), ((3, 3), (1, 1), (1, 1)), ((5, 5), (3, 2), (2, 1))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size, step, edge", CASES)
def test_equals_the_gradient_of_pytorch(
    size: tuple[int, int], step: tuple[int, int], edge: tuple[int, int], dtype: torch.dtype
) -> None:
    shape = (2, 5, 13, 11)
    kernel = _gradient_kernel(_pooled(nn.MaxPool2d(size, step, edge), shape, dtype))
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 5, shape, generator=generator).to(dtype)  # many are equal
    y, indices = aten.max_pool2d_with_indices(x, size, step, edge)
    gradient = torch.randn(y.shape, generator=generator).to(dtype)
    wide = aten.max_pool2d_with_indices_backward(
        gradient.double(), x.double(), size, step, edge, [1, 1], False, indices
    )
    rows, cols = (torch.arange(n) * s - e for n, s, e in zip(y.shape[2:], step, edge, strict=True))
    relative = indices - (rows[:, None] * shape[3] + cols)
    by_dtype = {torch.int16: relative.to(torch.int16), dtype: gradient}
    inputs = {buffer.name for buffer in kernel.parameters if buffer.name.startswith("in")}
    tensors = [
        by_dtype[buffer.dtype].flatten().clone() if buffer.name in inputs else torch.empty(buffer.size, dtype=dtype)
        for buffer in kernel.parameters
    ]
    run_kernel(kernel, tensors)
    (result,) = (t for t, buffer in zip(tensors, kernel.parameters, strict=True) if buffer.name.startswith("out"))
    torch.testing.assert_close(result.double().view(shape), wide, rtol=1e-2 if dtype.itemsize == 2 else 1e-6, atol=1e-6)
    OnHost(kernel).check(given=[t.clone() for t in tensors])


def test_places_beside_small_windows_of_wide_images_are_no_places_within() -> None:
    """Elements between windows lie 65,536 elements behind the first of a window here."""
    shape, size, step = (1, 1, 16, 16383), (2, 2), (8, 8)
    kernel = _gradient_kernel(_pooled(nn.MaxPool2d(size, step), shape, torch.float32))
    y, indices = aten.max_pool2d_with_indices(torch.zeros(shape), size, step)
    gradient = torch.ones(y.shape)
    first = indices[..., :, :1] + torch.arange(y.shape[3]) * 8
    relative, result = (indices - first).flatten(), torch.empty(shape).flatten()
    tensors = [
        result if buffer.name.startswith("out") else relative.to(buffer.dtype) if not buffer.dtype.is_floating_point
        else gradient.flatten()
        for buffer in kernel.parameters
    ]  # fmt: skip
    run_kernel(kernel, tensors)
    wanted = torch.zeros(shape).flatten().index_add_(0, indices.flatten(), gradient.flatten())
    assert torch.equal(result, wanted)


def test_is_a_kernel_of_its_own() -> None:
    """Sums over rows beside it would leave a thread two points, each with its own windows."""
    model = nn.Sequential(nn.Conv2d(8, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    ahead = compile_ahead(
        nn.Sequential(model, nn.Conv2d(64, 64, 3)).to(torch.bfloat16),
        [spec_like((4, 8, 32, 32), torch.bfloat16)],
        Options(target="sm_90"),
    )
    (kernel,) = [
        step.kernel
        for program in ahead.programs
        for step in program.steps
        if isinstance(step, Launch) and "pool2d" in step.kernel.name
    ]
    assert isinstance(kernel, Kernel)
    assert sum(isinstance(i, Gather) for i in kernel.instructions()) == 8
    (grid,) = plan(kernel, describe_cuda("sm_90")).phases
    assert isinstance(grid, Points)
