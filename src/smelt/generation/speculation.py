"""Speculative decoding: a small model, the assistant, drafts tokens, and the model checks them in one program.

    now: token 7 in row 9     the assistant: 3 1 4 1     the model: 3 1 5 …     →     3 1 5, now: token 5 in row 12

The tokens are those of the model alone. Both write their caches in place: rows behind the newest token are replaced.
Nothing is computed at positions behind the last token, so the model computes the last few alone.
"""

from collections.abc import Iterator

from torch import Tensor

from smelt.device.host_library import HOST
from smelt.generation.programs import DRAFT_TOKENS, Now
from smelt.generation.run import Run


class SpeculativeRun:
    """The runs of a model and its assistant on one prompt."""

    def __init__(self, run: Run, assistant: Run) -> None:
        self.run, self.assistant = run, assistant

    def columns(self) -> Iterator[Tensor]:
        """Generate; gives the new tokens [1] on the host, several after each check."""
        run, assistant = self.run, self.assistant
        read = run.length - 1
        while True:
            now = Now(*run.state.now.to(HOST))
            run.length = int(now.length)
            last = min(run.length, run.last_length)
            tokens = run.state.output[0, read:last].to(HOST)
            yield from tokens.unsqueeze(1)
            read = last
            if int(now.is_finished) or run.length >= run.last_length:
                return
            if run.length + DRAFT_TOKENS >= run.last_length:  # the model may have no positions for drafts
                run.next()
                continue
            assistant.state = assistant.state._replace(now=run.state.now)
            assistant.length = run.length
            for each in (run, assistant):
                each.make_room(DRAFT_TOKENS + 1)
            for _ in range(DRAFT_TOKENS + 1):  # the last one writes the keys and values of the last draft
                assistant.next()
            state = run.programs.check_drafts(run.model, run.state, assistant.state.output)
            run.state = run.state._replace(now=state)
