"""Philox on GPUs, on the host and as PTX, against its published answers and a plain implementation in Python."""

import torch

from smelt import _native
from smelt.codegen.gpu.cuda_target import describe_cuda
from smelt.codegen.gpu.gpu_generator import ptx
from smelt.codegen.gpu.simt import Simt
from smelt.codegen.llvm import compile as llvm_compile
from smelt.codegen.loops.philox import philox
from smelt.codegen.loops.runtime_sizes import Sizes
from smelt.ir.loops import Module
from smelt.ir.nodes.philox_draws import Draws
from smelt.ir.scalar import SCALAR_OPS
from tests.simt_host.warps import HostSimt, describe_host_warps, warp_function

WARP = 8
MASK = 0xFFFFFFFF
# Counter, key → words: the known answers of the authors' own library.
ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((MASK,) * 4, (MASK,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def plain(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    for number in range(10):
        low, high = ((each + number * step) & MASK for each, step in zip(key, (0x9E3779B9, 0xBB67AE85), strict=True))
        first, second = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = (second >> 32 ^ counter[1] ^ low, second & MASK, first >> 32 ^ counter[3] ^ high, first & MASK)
    return counter


def run(b: HostSimt, warps: int, *tensors: torch.Tensor) -> None:
    made = llvm_compile.load([Module((warp_function(b, b.grid_function()),))], b.target)[0]
    phase = (made.address(b.symbol), 1, warps * WARP, 0, False)
    _native.GridLauncher((phase,), len(tensors), 0, warp=WARP)(1, *tensors)


def host(buffers: int) -> HostSimt:
    return HostSimt(describe_host_warps("test", WARP), "k", Sizes(buffers), "i32", buffers=buffers, threads=WARP)


def write_words(b: Simt) -> None:
    at = b.mul(b.thread(), 4)
    counter = b.load_global(b.parameter(0), at, "i32", 4)
    key = b.load_global(b.parameter(1), b.mul(b.thread(), 2), "i32", 2)
    b.store_global(b.parameter(2), at, philox(b, key, counter))


def test_known_answers() -> None:
    assert all(plain(counter, key) == words for counter, key, words in ANSWERS)
    generator = torch.Generator().manual_seed(0)
    counters, keys = (torch.randint(0, 1 << 32, (4 * WARP, size), generator=generator) for size in (4, 2))
    for row, (counter, key, _) in enumerate(ANSWERS):
        counters[row], keys[row] = torch.tensor(counter), torch.tensor(key)
    b, found = host(3), torch.zeros(4 * WARP, 4, dtype=torch.int32)
    write_words(b)
    given = [each.to(torch.int32) for each in (counters, keys)]
    run(b, 4, *given, found)
    want = [plain(tuple(c), tuple(k)) for c, k in zip(counters.tolist(), keys.tolist(), strict=True)]
    assert (found.to(torch.int64) & MASK).tolist() == [list(each) for each in want]


def test_how_far_a_generator_moves() -> None:
    assert Draws.of(100, 132, 2048, 4) == Draws(100, 256, 4)
    assert Draws.of(1 << 20, 132, 2048, 4).threads == 132 * 8 * 256
    assert [Draws(count, 256, 4).words for count in (1, 1024, 1025)] == [4, 4, 8]
    assert [Draws(count, 256, 8).words for count in (1024, 1025, 2048, 2049)] == [4, 8, 8, 12]


def test_as_ptx() -> None:
    target = describe_cuda("sm_90")
    b = Simt(target, "k", Sizes(3), "i32", buffers=3, threads=256)
    write_words(b)
    text = ptx(Module((b.grid_function(),)), target)
    assert "mul.wide.u32" in text or "mul.hi.u32" in text
    assert "call" not in text


def test_in_the_kernel_form() -> None:
    """The reference of the scalar operation is what the authors say."""
    generator = torch.Generator().manual_seed(0)
    seeds, sequences, counters = (
        torch.randint(-(1 << 63), (1 << 63) - 1, (50,), generator=generator) for _ in range(3)
    )
    found = [SCALAR_OPS["philox"].reference(seeds, sequences, counters, torch.full((50,), word)) for word in range(4)]
    for row, given in enumerate(zip(seeds.tolist(), sequences.tolist(), counters.tolist(), strict=True)):
        seed, sequence, counter = ((value & MASK, value >> 32 & MASK) for value in given)
        assert plain((*counter, *sequence), seed) == tuple(int(each[row]) for each in found)
