"""Brings the blocks of a function into SPIR-V's structured form: each branch names its merge block.

    body:                                 body:    OpLoopMerge merge next; br inner
      …                                   inner:   …
    latch:                          →     latch:   …; br next
      br c, body, exit                    next:    br c, body, merge
    exit:                                 merge:   br exit

Loops run their body at least once and have one back edge. The ways of another branch merge in the block that all of
them reach. `Builder` writes only such code.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import field

from smelt.base.errors import SmeltError
from smelt.base.fast_dataclass import dataclass

_TARGETS = re.compile(r"label %([\w.$-]+)")


@dataclass(slots=True)
class Block:
    """Straight code. The last line, `br` or `ret`, is kept apart."""

    name: str
    phis: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    last: str = ""
    merge: str = ""  # where the ways of its branch merge, or a loop ends
    repeats: str = ""  # of the first block of a loop: the block that branches back

    @property
    def following(self) -> list[str]:
        return _TARGETS.findall(self.last)


def blocks_of(lines: Sequence[str]) -> list[Block]:
    """The blocks of a function's text."""
    blocks = [Block("entry")]
    for line in lines:
        text = line.partition(";")[0].strip()
        if not text:
            continue
        if text.endswith(":"):
            if blocks[-1].name == "entry" and not blocks[-1].lines and not blocks[-1].last:
                blocks.pop()
            blocks.append(Block(text[:-1]))
        elif text.startswith(("br ", "ret ")):
            blocks[-1].last = text
        elif " = phi " in text:
            blocks[-1].phis.append(text)
        else:
            blocks[-1].lines.append(text)
    return blocks


def structured(blocks: Sequence[Block]) -> list[Block]:
    """The same blocks and some more, each after those that all ways to it lead through."""
    graph = {block.name: block for block in blocks}
    first = blocks[0].name
    order = _order(graph, first)
    above = _dominators({name: graph[name].following for name in order}, first)
    for name in order:
        for target in graph[name].following:
            if target in above[name]:
                _loop(graph, target, name)
    order = _order(graph, first)
    below = _dominators(_reversed(graph, order), "")
    for name in order:
        block = graph[name]
        if not block.merge and len(set(block.following)) == 2 and not _repeats(graph, block):
            common = below[name] - {name}
            block.merge = max(common, key=lambda each: len(below[each]))
    merges = [graph[name].merge for name in order if graph[name].merge]
    if len(merges) != len(set(merges)):
        raise SmeltError("SM030", "two branches meet in one block, which SPIR-V does not allow")
    return [graph[name] for name in order]


def _repeats(graph: dict[str, Block], block: Block) -> bool:
    return any(each.repeats == block.name for each in graph.values())


def _loop(graph: dict[str, Block], head: str, latch: str) -> None:
    begin, end = graph[head], graph[latch]
    targets = end.following
    if begin.repeats or len(set(targets)) != 2:
        raise SmeltError("SM030", "a loop of this form has no code in SPIR-V")
    inner, again, merge = f"{head}.inner", f"{latch}.next", f"{latch}.merge"
    (leave,) = (each for each in targets if each != head)
    graph[inner] = Block(inner, [], begin.lines, begin.last)
    begin.lines, begin.last = [], f"br label %{inner}"
    end = graph[inner] if latch == head else end
    condition = end.last.partition(",")[0]
    then, otherwise = (head if each == head else merge for each in targets)
    graph[again] = Block(again, [], [], f"{condition}, label %{then}, label %{otherwise}")
    graph[merge] = Block(merge, [], [], f"br label %{leave}")
    end.last = f"br label %{again}"
    begin.merge, begin.repeats = merge, again
    # Who came from the first block comes from the inner one, and who came from the last, from the two new ones.
    for block in graph.values():
        for place, phi in enumerate(block.phis):
            if block.name == head:
                phi = _came(phi, latch, again)
            elif block.name == leave:
                phi = _came(phi, latch, merge)
            if latch != head and block.name in graph[inner].following:
                phi = _came(phi, head, inner)
            block.phis[place] = phi


def _came(phi: str, old: str, new: str) -> str:
    return re.sub(rf"%{re.escape(old)} \]", f"%{new} ]", phi)


def _order(graph: dict[str, Block], first: str) -> list[str]:
    """Blocks before those they lead to, but for loops."""
    finished: list[str] = []
    seen = {first}
    stack: list[tuple[str, Iterator[str]]] = [(first, iter(graph[first].following))]
    while stack:
        name, rest = stack[-1]
        following = next((each for each in rest if each not in seen), None)
        if following is None:
            finished.append(name)
            stack.pop()
            continue
        seen.add(following)
        stack.append((following, iter(graph[following].following)))
    return finished[::-1]


def _reversed(graph: dict[str, Block], order: Sequence[str]) -> dict[str, list[str]]:
    """Edges the other way round, from a block after all."""
    edges: dict[str, list[str]] = {"": []}
    edges.update({name: [] for name in reversed(order)})
    for name in order:
        for each in graph[name].following:
            edges[each].append(name)
        if not graph[name].following:
            edges[""].append(name)
    return edges


def _dominators(edges: dict[str, list[str]], first: str) -> dict[str, set[str]]:
    """Of each block those that every way to it from the first leads through, itself among them."""
    before: dict[str, list[str]] = {name: [] for name in edges}
    for name, following in edges.items():
        for each in following:
            before[each].append(name)
    everything = set(edges)
    dominators = {name: {name} if name == first else everything for name in edges}
    changed = True
    while changed:
        changed = False
        for name in edges:
            if name == first:
                continue
            new = set.intersection(*(dominators[each] for each in before[name])) | {name} if before[name] else {name}
            if new != dominators[name]:
                dominators[name], changed = new, True
    return dominators
