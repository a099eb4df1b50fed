"""Random writes and reads through names that stand for the same objects in one call and for others in the next."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.capture.programs import Captured
from tests.capture.replay.test_writes import Box, picture

NAMES = "abc"
STATEMENTS = [
    "{p}.n = {q}.n + {k}", "{p}.log.append({q}.n)", "{p}.log = {q}.log", "{p}.log = [{q}.n, x]", "{p}.other = {q}",
    "x = x + len({p}.log)", "x = x * {p}.n", "out.append({p}.log[-1] if {p}.log else x)", "{p}.t = x + {k}",
    "out.append({p}.t + {q}.t)", "{p}.log.pop() if {p}.log else None", "out.append({p} is {q})",
    "{p}.log[0:1] = [{q}.t]",
    "out.append({p}.other.n if {p}.other is not None else {k})", "{p}.table[{k}] = {q}.t", "{p}.table.pop({k}, None)",
    "out.append(list({p}.table))", "{p}.table = dict({q}.table)", "shared.append(x)", "{p}.log += shared",
    "if {p}.n > {k}:\n        {q}.n = {k}", "graph_break()", "for item in {p}.log[:2]:\n        out.append(item)",
    "del {p}.t\n    {p}.t = x", "{p}.log.clear()", "out.append({p}.log is {q}.log)", "{p}.__dict__['n'] = {k}",
]  # fmt: skip


@st.composite
def programs(draw: st.DrawFn) -> str:
    lines = ["def program(x, a, b, c, shared):", "    out = []"]
    for _ in range(draw(st.integers(1, 8))):
        words = {name: draw(st.sampled_from(NAMES)) for name in "pq"}
        lines.append("    " + draw(st.sampled_from(STATEMENTS)).format(k=draw(st.integers(0, 3)), **words))
    return "\n".join([*lines, "    return x, out, a, b, c, shared"]) + "\n"


def world(pattern: tuple[int, int, int], logs: tuple[int, int, int], shared: int) -> dict[str, Any]:
    """Objects by `pattern`: names with the same number are one object, and likewise their lists."""
    lists: list[list[Any]] = [[], [torch.zeros(2)], [1]]
    objects = [
        Box(n=number, t=torch.full((2,), float(number)), log=lists[logs[number]], table={number: 0}, other=None)
        for number in range(3)
    ]
    return dict(zip(NAMES, (objects[number] for number in pattern), strict=True)) | {"shared": lists[shared]}


NUMBERS = st.tuples(*[st.integers(0, 2)] * 3)


@settings(max_examples=100, deadline=None)
@given(programs(), st.lists(st.tuples(NUMBERS, NUMBERS, st.integers(0, 2)), min_size=2, max_size=4))
def test_names_for_one_object_and_for_several(text: str, worlds: list[Any]) -> None:
    def graph_break() -> None:
        return None

    namespace: dict[str, Any] = {"graph_break": graph_break}
    exec(compile(text, f"<writes {abs(hash(text))}>", "exec"), namespace)
    program, runner = namespace["program"], Captured()
    for call, layout in enumerate(worlds):
        x = torch.arange(2.0) + call
        found: list[Any] = []
        for run in (program, lambda *args, **given: runner(program, *args, **given)):
            try:
                result: Any = run(x, **world(*layout))
            except Exception as error:
                result = (type(error), str(error))
            found.append(picture(result))
        assert found[0] == found[1]
