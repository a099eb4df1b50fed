"""A generation under way: its tensors, its next token, and what the host has read of it.

run.next()            launches the program of a token
run.columns(every)    generates to the end, and gives new tokens when they have arrived on the host
"""

from collections import deque
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from smelt.device.host_library import HOST
from smelt.generation.programs import Now, Programs, Prompt, first_state, mark_lengths, store_token, with_room
from smelt.generation.sampling import SamplingKind, SamplingNumbers

FIRST_ROOM_TOKENS = 512  # buffers begin with room for so many new tokens: attention reads all of a buffer
ROOM_MULTIPLE = 64
COPIES_IN_FLIGHT = 2


class Settings(NamedTuple):
    """The arguments of a call that are not about sampling."""

    max_new_tokens: int
    stop_tokens: list[int]
    pad_token: int
    generator: torch.Generator | None


class Run:
    """One call of `generate`: the tensors of its state, and how many columns of the output are computed."""

    def __init__(
        self, programs: Programs, model: torch.nn.Module, prompt: Prompt, kind: SamplingKind,
        numbers: tuple[float, ...], settings: Settings,
    ) -> None:  # fmt: skip
        self.programs, self.model, self.settings = programs, model, settings
        device = prompt.ids.device
        self.numbers = SamplingNumbers(*(torch.tensor(number, device=device) for number in numbers))
        self.length = prompt.ids.shape[1]
        self.last_length = self.length + settings.max_new_tokens
        first = programs.read_prompt(model, mark_lengths(prompt))
        self.state = first_state(prompt, first, kind, settings, self._room(FIRST_ROOM_TOKENS))
        self._draw()
        self.state = self.state._replace(now=store_token(first.logits, self.state, kind, self.numbers, 0))
        self.length += 1

    def columns(self, every: int) -> Iterator[Tensor]:
        """Generate; gives each `every`-th column of new tokens [batch], on the host, some tokens late on a GPU."""
        reader = Reader(self.state.now)
        while self.length < self.last_length:
            if self.length % every == 0:
                reader.copy(self.state.now)
                if (yield from reader.columns(wait_for_all=False)):
                    return
            self.next()
        reader.copy(self.state.now)
        yield from reader.columns(wait_for_all=True)

    def result(self) -> Tensor:
        """The prompts and the new tokens, up to the last stop token."""
        length = min(int(Now(*self.state.now).length[0]), self.last_length)
        return self.state.output[:, :length].clone()

    def next(self) -> None:
        """Compute a token."""
        self.make_room(1)
        self._draw()
        self.state = self.state._replace(now=self.programs.next_token(self.model, self.state, self.numbers))
        self.length += 1

    def make_room(self, tokens: int) -> None:
        """Have room for so many tokens behind the newest."""
        if self.length + tokens > self.state.output.shape[1]:
            self.state = with_room(self.state, max(self._room(self.length), self.length + tokens))

    def _draw(self) -> None:
        if self.state.noise.numel():
            self.state.noise.exponential_(generator=self.settings.generator)

    def _room(self, tokens: int) -> int:
        """The capacity for so many tokens more: a multiple, so that few capacities occur."""
        needed = min(self.last_length, self.length + tokens)
        return -(-needed // ROOM_MULTIPLE) * ROOM_MULTIPLE


class Reader:
    """Copies what is new to the host, and reads it when the copy has arrived."""

    def __init__(self, now: Tensor) -> None:
        self.is_gpu = now.is_cuda
        self.copies: deque[tuple[Tensor, Any]] = deque()

    def copy(self, now: Tensor) -> None:
        if not self.is_gpu:
            self.copies.append((now, None))
            return
        event: Any = torch.cuda.Event  # which PyTorch does not type
        event = event()
        copied = now.to(HOST, non_blocking=True)
        event.record()
        self.copies.append((copied, event))

    def columns(self, wait_for_all: bool) -> Generator[Tensor, None, bool]:
        """The columns that have arrived; returns whether all texts have ended."""
        while self.copies:
            copied, event = self.copies[0]
            if event is not None:
                if not wait_for_all and len(self.copies) <= COPIES_IN_FLIGHT and not event.query():
                    return False
                event.synchronize()
            self.copies.popleft()
            now = Now(*copied)
            yield now.token
            if bool(now.is_finished.all()):
                return True
        return False
