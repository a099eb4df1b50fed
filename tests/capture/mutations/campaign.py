"""Many stories of changing worlds against plain Python: `make test-worlds`, or

    python -m tests.capture.mutations.campaign --count 5000 --start 7 --jobs 2 --keep failures/

A story that fails is made small and printed as a script of its own.
"""

import sys
from dataclasses import replace
from typing import Any

import torch

from smelt.base.options import config
from tests.campaigns import Campaign
from tests.capture.mutations.running import verdict
from tests.capture.mutations.story import Story, story_of

_SCRIPT = '''\
"""Run from the root of the checkout."""
from tests.capture.mutations.running import verdict
from tests.capture.mutations.story import Story

PROGRAM = {text!r}
STEPS = (
{steps})
print(PROGRAM)
print(verdict(Story(PROGRAM, STEPS)).failure)
'''


def failure_of(story: Story) -> str | None:
    """What is wrong, in words; None if nothing is."""
    try:
        return verdict(story).failure
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def shrunk(story: Story) -> Story:
    """The story with as few steps and lines as still fail."""
    place = len(story.steps) - 1
    while place >= 0:
        smaller = replace(story, steps=(*story.steps[:place], *story.steps[place + 1 :]))
        if failure_of(smaller) is not None:
            story = smaller
        place -= 1
    lines = story.text.splitlines()
    for number in range(len(lines) - 2, 1, -1):
        for count in (4, 1):
            rest = lines[:number] + lines[number + count :]
            text = "\n".join([*rest, ""])
            if _compiles(text) and failure_of(replace(story, text=text)) is not None:
                lines, story = rest, replace(story, text=text)
                break
    return story


def _compiles(text: str) -> bool:
    try:
        compile(text, "story", "exec")
    except SyntaxError:
        return False
    return "return" in text


def script(story: Story) -> str:
    return _SCRIPT.format(text=story.text, steps="".join(f"    {step!r},\n" for step in story.steps))


def report(story: Story, name: str) -> str:
    """A failure with its smallest script."""
    small = shrunk(story)
    return f"{name}: {failure_of(small)}\n\n{script(small)}"


def examine(seed: int) -> dict[str, Any]:
    """Story `seed` told both ways."""
    story = story_of(seed)
    try:
        found = verdict(story)
    except Exception:
        return {"failure": report(story, f"story {seed}")}
    counts = {"calls": found.calls, "graphs": found.graphs, "breaks": found.breaks, "recompiles": found.recompiles}
    return counts | {"failure": report(story, f"story {seed}") if found.failure else None}


def alone() -> None:
    """A worker of its own: errors of the compiler count, and the other cores have workers too."""
    config.suppress_errors = False
    torch.set_num_threads(1)


CAMPAIGN = Campaign(
    "tests.capture.mutations.campaign",
    examine,
    lambda seed: script(story_of(seed)),
    ("calls", "graphs", "breaks", "recompiles"),
    alone,
    count=5000,
)


if __name__ == "__main__":
    sys.exit(CAMPAIGN.main())
