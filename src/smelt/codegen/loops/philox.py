"""Random numbers as PyTorch draws them on NVIDIA's GPUs: Philox4x32-10, four words per counter, in closed form.

    words = philox(b, (seed_low, seed_high), (counter_low, counter_high, sequence_low, sequence_high))

A CUDA generator has a seed and an offset. In a PyTorch kernel `threads` threads draw, each from its own sequence of the
seed, from `offset / 4` on; the generator's offset then advances by the most words that any thread drew. So the number
of an element depends only on its position.

In the kernel form this is the scalar operation `philox`: a seed, a sequence, a counter and the number of one of its
four words, all integers, give the word. Dropout masks are arithmetic on it (`ops/dropout.py`). The seed and the offset
are read from memory, as the generator had them when the program ran (`ir/nodes/philox_draws.py`).
"""

from collections.abc import Sequence

from smelt.codegen.loops.builder import Builder
from smelt.codegen.loops.wide_products import wide_product
from smelt.ir.loops import Value
from smelt.ir.nodes.philox_draws import AT_ONCE

_FACTORS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10

Words = tuple[Value, Value, Value, Value]


def philox(b: Builder, key: Sequence[Value], counter: Sequence[Value]) -> Words:
    """Four random words for a counter of four, all i32."""
    low_key, high_key = key
    x, y, z, w = counter
    for number in range(_ROUNDS):
        if number:
            low_key = b.add(low_key, _signed(_KEY_STEPS[0]))
            high_key = b.add(high_key, _signed(_KEY_STEPS[1]))
        (low_x, high_x), (low_z, high_z) = (wide_product(b, *each) for each in zip((x, z), _FACTORS, strict=True))
        x, y, z, w = b.xor(b.xor(high_z, y), low_key), low_z, b.xor(b.xor(high_x, w), high_key), low_x
    return x, y, z, w


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def _halves(b: Builder, value: Value) -> tuple[Value, Value]:
    return b.convert("trunc", value, "i32"), b.convert("trunc", b.lshr(value, 32), "i32")


def _words(b: Builder, seed: Value, sequence: Value, counter: Value) -> Words:
    """The four words of a counter, i32, given i64."""
    return philox(b, _halves(b, seed), [*_halves(b, counter), *_halves(b, sequence)])


def words_of_counter(b: Builder, seed: Value, sequence: Value, counter: Value) -> tuple[Value, ...]:
    """The four words of a counter, all i64."""
    return tuple(b.convert("zext", each, "i64") for each in _words(b, seed, sequence, counter))


def word_of(b: Builder, seed: Value, sequence: Value, counter: Value, word: Value) -> Value:
    """One of the four words of a counter, all i64."""
    words = _words(b, seed, sequence, counter)
    which, chosen = b.and_(word, AT_ONCE - 1), words[0]
    for number in range(1, AT_ONCE):
        chosen = b.select(b.icmp("eq", which, number), words[number], chosen)
    return b.convert("zext", chosen, "i64")
