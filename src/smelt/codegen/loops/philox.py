"""Random numbers as PyTorch draws them on NVIDIA's GPUs: Philox4x32-10, four words per counter, in closed form.

    words = philox(b, (seed_low, seed_high), (counter_low, counter_high, sequence_low, sequence_high))
    u = uniform(b, words[0])                    in (0, 1], as curand_uniform gives it

A CUDA generator has a seed and an offset. In a PyTorch kernel `threads` threads draw, each from its own sequence of the
seed, from `offset / 4` on; the generator's offset then advances by the most words that any thread drew. So the number
of an element depends only on its position: `drawn`.

In the kernel form this is the scalar operation `philox`: a seed, a sequence, a counter and the number of one of its
four words, all integers, give the word. Dropout masks are arithmetic on it (`ops/dropout.py`): the position of an
element from `place_of`, and a word below a threshold instead of `u < 1 - p`. The seed and the offset are read from
memory, as the generator had them when the program ran (`ir/nodes/philox_draws.py`).
"""

from collections.abc import Sequence

from smelt.codegen.loops.builder import Builder
from smelt.ir.loops import Value
from smelt.ir.nodes.philox_draws import AT_ONCE, Draws

_FACTORS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_STEP = 2.0**-32

Words = tuple[Value, Value, Value, Value]


def philox(b: Builder, key: Sequence[Value], counter: Sequence[Value]) -> Words:
    """Four random words for a counter of four, all i32."""
    low_key, high_key = key
    x, y, z, w = counter
    for number in range(_ROUNDS):
        if number:
            low_key = b.add(low_key, _signed(_KEY_STEPS[0]))
            high_key = b.add(high_key, _signed(_KEY_STEPS[1]))
        high_x, low_x = _product(b, x, _FACTORS[0])
        high_z, low_z = _product(b, z, _FACTORS[1])
        x, y, z, w = b.xor(b.xor(high_z, y), low_key), low_z, b.xor(b.xor(high_x, w), high_key), low_x
    return x, y, z, w


def _product(b: Builder, value: Value, factor: int) -> tuple[Value, Value]:
    """The upper and the lower half."""
    whole = b.mul(b.convert("zext", value, "i64"), factor)
    return b.convert("trunc", b.lshr(whole, 32), "i32"), b.convert("trunc", whole, "i32")


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def uniform(b: Builder, word: Value) -> Value:
    """An f32 above 0 and at most 1: word · 2⁻³² + 2⁻³³."""
    return b.fma(b.convert("uitofp", word, "f32"), _STEP, _STEP / 2)


def place_of(b: Builder, draws: Draws, element: Value) -> tuple[Value, Value, Value]:
    """Of an element, as i64: whose sequence it is from, how many counters after the offset's, and which word."""
    if draws.at_once == 1:
        number, thread = _divided(b, element, draws.threads)
        return thread, b.lshr(number, 2), b.and_(number, AT_ONCE - 1)
    number, rest = _divided(b, element, draws.threads * draws.at_once)
    thread, inside = _divided(b, rest, draws.at_once)
    counters = b.add(b.mul(number, draws.at_once // AT_ONCE), b.lshr(inside, 2))
    return thread, counters, b.and_(inside, AT_ONCE - 1)


def _divided(b: Builder, value: Value, by: int) -> tuple[Value, Value]:
    if by & (by - 1) == 0:
        return b.lshr(value, by.bit_length() - 1), b.and_(value, by - 1)
    whole = b.binary("udiv", value, by)
    return whole, b.sub(value, b.mul(whole, by))


def words_of(b: Builder, seed: Value, offset: Value, thread: Value, counters: Value) -> Words:
    """The four words that a thread draws, so many counters after those drawn before `offset`; all given as i64."""
    counter = b.add(b.lshr(offset, 2), counters)
    halves = [*_halves(b, counter), *_halves(b, thread)]
    return philox(b, _halves(b, seed), halves)


def _halves(b: Builder, value: Value) -> tuple[Value, Value]:
    return b.convert("trunc", value, "i32"), b.convert("trunc", b.lshr(value, 32), "i32")


def words_of_counter(b: Builder, seed: Value, sequence: Value, counter: Value) -> tuple[Value, ...]:
    """The four words of a counter, all i64."""
    words = philox(b, _halves(b, seed), [*_halves(b, counter), *_halves(b, sequence)])
    return tuple(b.convert("zext", each, "i64") for each in words)


def word_of(b: Builder, seed: Value, sequence: Value, counter: Value, word: Value) -> Value:
    """One of the four words of a counter, all i64."""
    words = philox(b, _halves(b, seed), [*_halves(b, counter), *_halves(b, sequence)])
    which, chosen = b.and_(word, AT_ONCE - 1), words[0]
    for number in range(1, AT_ONCE):
        chosen = b.select(b.icmp("eq", which, number), words[number], chosen)
    return b.convert("zext", chosen, "i64")


def drawn(b: Builder, draws: Draws, seed: Value, offset: Value, element: Value) -> Value:
    """The number in (0, 1] that an element gets."""
    thread, counters, word = place_of(b, draws, element)
    words = words_of(b, seed, offset, thread, counters)
    chosen = words[0]
    for number in range(1, AT_ONCE):
        chosen = b.select(b.icmp("eq", word, number), words[number], chosen)
    return uniform(b, chosen)
