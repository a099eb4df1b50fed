"""Whether a GPU draws dropout's masks as they are computed in closed form: asked of each GPU once, by drawing some.

    blocks_for(cuda:0, torch.float32, 4)   →   1056: the blocks that PyTorch's kernel has at most; None: leave it to it

What PyTorch's kernel does is not promised anywhere. So it is tried, with the generator put back afterwards: masks of a
few elements, and of more than all threads take in a round, bit for bit, and how far the generator moved.
"""

import torch

from smelt.base.errors import warn
from smelt.device import find
from smelt.device.host_library import HOST
from smelt.device.random_state import default_generator
from smelt.ir.nodes.philox_draws import BLOCK, Draws, mask, most_blocks, threshold, widest

_KEPT = 0.7
_known: dict[tuple[str, torch.dtype, int], int | None] = {}


def blocks_for(device: torch.device, dtype: torch.dtype, at_once: int, target: str = "") -> int | None:
    """How many blocks draw at most, where masks of elements taken so many at once are PyTorch's. Of a GPU that is not
    here that is what `target` says of its kind; whether it is so is seen when it is run."""
    if device.type != "cuda":
        return None
    if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
        return (find(target).drawing_blocks or None) if target else None
    key = str(device), dtype, at_once
    if key not in _known:
        if torch.cuda.is_current_stream_capturing():
            return None  # nothing can be tried now
        _known[key] = _tried(device, dtype, at_once)
    return _known[key]


def _tried(device: torch.device, dtype: torch.dtype, at_once: int) -> int | None:
    blocks = most_blocks(device)
    generator = default_generator(device)
    state = generator.get_state()
    try:
        counts = [125 * at_once, (blocks * BLOCK + 3) * at_once]
        if at_once == widest(dtype):
            counts.append(128 * at_once)  # which more at once would be taken of
        right = all(is_drawn(device, dtype, Draws.by_blocks(count, blocks, at_once)) for count in counts)
    except (RuntimeError, AttributeError):  # memory, say, or a generator that does not tell its offset
        return None
    finally:
        generator.set_state(state)
    if right:
        return blocks
    warn(f"SM023: dropout of {dtype} on {device} is drawn in an unknown way; it stays a call of PyTorch's.")
    return None


def is_drawn(device: torch.device, dtype: torch.dtype, draws: Draws) -> bool:
    """Whether PyTorch draws so."""
    generator = default_generator(device)
    seed, offset = generator.initial_seed(), generator.get_offset()
    x = torch.ones(draws.count, dtype=dtype, device=device)
    _, kept = torch.native_dropout(x, 1 - _KEPT, True)
    moved = generator.get_offset() - offset
    signed = seed - (1 << 64) if seed >> 63 else seed
    state = [torch.tensor(number, dtype=torch.int64, device=HOST) for number in (signed, offset)]
    below = threshold(1 - (1 - _KEPT), dtype)
    want = mask(state[0], state[1], draws.count, draws.threads, draws.at_once, below, 0, device=device)
    return moved == draws.words and torch.equal(kept, want)
