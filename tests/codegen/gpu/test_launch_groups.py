"""Pointwise kernels of one body in one grid."""

import pytest
import torch

from smelt import _native
from smelt.codegen.cpu.shared_bodies import families
from smelt.codegen.generator import EntryCode
from smelt.codegen.gpu.cuda_target import describe_cuda
from smelt.codegen.gpu.gpu_generator import CudaGenerator, HostGenerator
from smelt.codegen.gpu.host import describe_host_warps
from smelt.codegen.gpu.launch_groups import MOST_POINTERS, emit_group
from smelt.ir.kernel import Kernel
from tests.codegen.gpu.on_host import ORDERS, filled
from tests.ir.kernels import SOFTMAX, sized
from tests.kernel_reference import run_kernel
from tests.kernel_text import parse_kernel

WARP = 8


def update(count: int) -> Kernel:
    return parse_kernel(f"""
kernel update{count} rows() cols(j:{count})
  in g: bf16[{count}]
  in rate: f32[1]
  inout p: f32[{count}]
  inout m: f32[{count}]
  loop:
    a = load g[j]
    b = cast a : f32
    r = load rate[0]
    c = load p[j]
    d = load m[j]
    e = add d, b : f32
    f = fma e, r, c : f32
    store m[j] = e
    store p[j] = f
""")


def text(code: EntryCode) -> str:
    return "\n".join([*sorted(code.declarations), *(each for _, each in code.helpers), code.functions])


@pytest.mark.parametrize("counts", [[64, 1000], [64, 1000, 77, 4096, 65, 20_001], [300_001, 64, 65, 66, 67, 5000, 128]])
def test_all_members_are_run(counts: list[int]) -> None:
    kernels = [update(count) for count in counts]
    (family,) = families(kernels)
    target = describe_host_warps("test", WARP)
    code = emit_group("group", family, target, on_host=True)
    assert code is not None
    built = HostGenerator().load([text(code)], target)[0]
    (grid,) = code.phases
    given = [[filled(buffer, 9 * n + s) for s, buffer in enumerate(k.parameters)] for n, k in enumerate(kernels)]
    want = [[tensor.clone() for tensor in tensors] for tensors in given]
    for kernel, tensors in zip(kernels, want, strict=True):
        run_kernel(kernel, tensors)
    phase = (built.address("group"), grid.blocks, grid.threads, grid.shared_bytes, grid.has_barrier)
    for order in ORDERS:
        flat = [tensor.clone() for tensors in given for tensor in tensors]
        _native.set_simt_order(order, 3)
        try:
            _native.GridLauncher((phase,), len(flat), 0, warp=WARP)(1, *flat)
        finally:
            _native.set_simt_order("forward")
        for mine, theirs in zip(flat, (tensor for tensors in want for tensor in tensors), strict=True):
            torch.testing.assert_close(mine, theirs)


def test_a_gpu_is_given_one_function() -> None:
    (family,) = families([update(768 * 768 * (1 + n % 4) + n % 3) for n in range(100)])
    target = describe_cuda("sm_90")
    code = emit_group("group", family, target, on_host=False)
    assert code is not None and len(code.phases) == 1
    found = CudaGenerator().assemble(text(code), target)
    assert found.count(".entry") == 1 and "local" not in found
    assert found.count("st.global.v4.b32") == 4  # eight points of two arrays


def test_what_is_not_grouped() -> None:
    target = describe_cuda("sm_90")
    (rows,) = families([parse_kernel(sized(SOFTMAX, count, 64)) for count in (8, 16)])
    assert emit_group("group", rows, target, on_host=False) is None
    (many,) = families([update(64 + n) for n in range(MOST_POINTERS // 4 + 1)])
    assert emit_group("group", many, target, on_host=False) is None
