"""Philox on GPUs, on the host and as PTX, against its published answers and a plain implementation in Python."""

import torch

from smelt import _native
from smelt.codegen.gpu.cuda_target import describe_cuda
from smelt.codegen.gpu.gpu_generator import ptx
from smelt.codegen.gpu.host import describe_host_warps, warp_function
from smelt.codegen.gpu.simt import Simt
from smelt.codegen.llvm import compile as llvm_compile
from smelt.codegen.loops.philox import Draws, drawn, philox, uniform
from smelt.codegen.loops.runtime_sizes import Sizes
from smelt.ir.loops import Module
from smelt.ir.scalar import SCALAR_OPS

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


def plain_draw(draws: Draws, seed: int, offset: int, element: int) -> float:
    """As PyTorch's kernels go through their elements."""
    if draws.at_once == 1:
        turn, thread = divmod(element, draws.threads)
        counters, word = divmod(turn, 4)
    else:
        turn, rest = divmod(element, draws.threads * draws.at_once)
        thread, inside = divmod(rest, draws.at_once)
        counters, word = turn * draws.at_once // 4 + inside // 4, inside % 4
    count = offset // 4 + counters
    words = plain((count & MASK, count >> 32, thread & MASK, thread >> 32), (seed & MASK, seed >> 32))
    return float(torch.tensor(words[word], dtype=torch.float64).float() * 2.0**-32 + 2.0**-33)


def run(b: Simt, warps: int, *tensors: torch.Tensor) -> None:
    made = llvm_compile.load([Module((warp_function(b, b.grid_function()),))], b.target)[0]
    phase = (made.address(b.symbol), 1, warps * WARP, 0, False)
    _native.GridLauncher((phase,), len(tensors), 0, warp=WARP)(1, *tensors)


def host(buffers: int) -> Simt:
    return Simt(describe_host_warps("test", WARP), "k", Sizes(buffers), "i32", buffers=buffers, threads=WARP)


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


def test_numbers_are_above_zero_and_at_most_one() -> None:
    words = torch.tensor([0, 1, MASK, MASK - 127, 1 << 31, 255, 1 << 24, 12345], dtype=torch.int64)
    b, found = host(2), torch.zeros(WARP)
    (word,) = b.load_global(b.parameter(0), b.thread(), "i32")
    b.store_global(b.parameter(1), b.thread(), [uniform(b, word)])
    run(b, 1, words.to(torch.int32), found)
    assert torch.equal(found, words.float() * 2.0**-32 + 2.0**-33)
    assert found.min() == 2.0**-33 and found.max() == 1


def test_what_each_element_is_given() -> None:
    for draws in (Draws(3000, 512, 4), Draws(3000, 256, 8), Draws(3000, 512, 1), Draws(70, 768, 4)):
        seed, offset = 0x123456789ABCDEF, 4 * 0x300000007
        elements = torch.randint(0, draws.count, (4 * WARP,), generator=torch.Generator().manual_seed(1))
        b, found = host(3), torch.zeros(4 * WARP)
        (element,) = b.load_global(b.parameter(0), b.thread(), "i64")
        given = [b.load_global(b.parameter(1), b.index(number), "i64")[0] for number in (0, 1)]
        b.store_global(b.parameter(2), b.thread(), [drawn(b, draws, given[0], given[1], element)])
        run(b, 4, elements, torch.tensor([seed, offset]), found)
        assert found.tolist() == [plain_draw(draws, seed, offset, each) for each in elements.tolist()]


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
