"""Random functions with branches, loops and in-place writes, to be exported.

    program_of(7)   →   Program: its text, an example of its arguments, and the calls to make

Every variable has a kind, which says its shape: `m` matrices with four columns, `v` vectors of four elements, `s`
tensors without dimensions, `k` Python's ints, `f` its floats. A variable keeps its kind when a branch or a loop assigns
to it.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

COLUMNS = 4
LENGTHS = (1, 2, 2, 3, 3, 4, 5, 8)  # of most programs: an export takes some tenth of a second for each state

# Expressions by kind; `{m}` is some variable of kind m, `{i}` a column, `{c}` a small number.
EXPRESSIONS = {
    "m": (
        "{m} * {c}", "{m} + {m}", "{m} - {v}", "{m} * {s}", "torch.tanh({m})", "torch.relu({m})", "{m}.clone()",
        "{m} * {k}", "{m} + {f}", "torch.where({m} > {s}, {m}, {c})", "torch.softmax({m}, 1)", "{m}.abs()",
        "{m} @ torch.tanh({m}[:1].t() * {v})", "torch.roll({m}, 1, 1)", "{m}.flip(1)", "{m}.cumsum(1) * 0.3",
        "torch.zeros_like({m}) + {v}", "torch.cat([{m}[:, {i}:], {m}[:, :{i}]], 1)", "{m} / (1 + {m}.abs())",
        "torch.maximum({m}, {m})", "{m}.clamp(-{c}, {c})", "({m} > 0).float() - {m} * 0.5", "helper({m}, {s})",
        "torch.sort({m}, 1).values", "torch.stack([{m}[:, j] for j in range(4)], 1)", "torch.sin({m}).view({m}.shape)",
    ),
    "v": (
        "{v} * {c}", "{v} + {v}", "{m}.mean(0)", "{m}.amax(0)", "{m}[0]", "{m}[-1] * {c}", "{v} * {s}",
        "torch.cos({v})",
        "{v}.clone()", "torch.arange(4.0) * {c}", "{v} + {k}", "{v} * {f}", "torch.full((4,), {c})", "{v}.flip(0)",
        "torch.cat([{v}[{i}:], {v}[:{i}]])", "torch.where({v} > 0, {v}, -{v})", "torch.stack([{s}, {s}, {s}, {s}])",
        "{m}.sum(0) * 0.2", "{v}.sort().values", "{v}[[3, 1, 0, 2]]", "{v}.cumsum(0) * 0.3",
    ),
    "s": (
        "{m}.mean()", "{v}.max()", "{v}[{i}]", "{m}[0, {i}]", "{s} * {c}", "{s} + {s}", "torch.tanh({s})",
        "{v}.sum() * 0.3",
        "torch.tensor({c})", "{s} - {f}", "{s} * {k}", "({v} > 0).sum() * 0.5", "{m}.std()", "{v}.norm() * 0.5",
    ),
    "k": (
        "{k} + 1", "{k} - 1", "{k} * 2 % 5", "int({s}.clamp(-3, 5))", "{k} // 2", "max({k}, 1)", "min({k}, 4)",
        "({v} > 0).sum().item()", "abs({k})", "int({f})", "-{k}",
    ),
    "f": (
        "{f} * {c}", "{f} + {k}", "{s}.item()", "float({s})", "{f} / 2", "max({f}, {c})", "abs({f})", "-{f}",
        "float({k})",
    ),
}  # fmt: skip

CONDITIONS = (
    "{s} > {c}", "{m}.sum() > {c}", "({m} > 0).any()", "({v} < 1).all()", "{v}[{i}] < {s}", "not ({s} > 0)", "{k} > 1",
    "{f} < {c}", "{s} > 0 and {v}[{i}] > 0", "{s} > 1 or {k} < 2", "flag", "flag and {s} < {c}", "{k} % 2 == 0",
    "-1 < {s} < 1", "{m}.shape[0] > 3", "torch.isfinite({m}).all()", "{k} == 2 or not flag", "{s}",
)  # fmt: skip

# In-place writes, to what the program made itself.
WRITES = {
    "m": (
        "{t}[0] = {c}", "{t}[:, {i}] += {c}", "{t}.add_({m})", "{t}.mul_({c})", "{t}.zero_()", "{t}[:, {i}] = {v}[0]",
        "{t}[-1] = {v}", "{t}.copy_({v})", "{t}.fill_({c})", "{t}.clamp_(-1, 1)", "{t}[{t} > 0] = {c}", "{t} += {v}",
        "{t} *= {s}", "{t}[:, 1:3] -= {c}", "{t}.t().add_({c})", "torch.relu_({t})", "{t}[1:] = {v}",
        "{t}[:, ::2] *= {c}",
        "{t}.masked_fill_({t} < 0, {c})", "{t}[0, {i}] = {s}", "{t}[0].sub_({v})", "{t}.fill_({s})",
        "{t}[:, {i}] = {m}[:, 0]",
        "{t}.view(-1)[:2].add_({c})", "{t}.fill_diagonal_({c})",
    ),
    "v": (
        "{t}[{i}] = {c}", "{t}[{i}] += {s}", "{t}.add_({v})", "{t}[1:] = 0", "{t}.mul_({c})", "{t}[:2] -= {c}",
        "{t}.zero_()", "{t} += {c}", "{t}.copy_({m}[0])", "{t}[{v} > {c}] = {c}", "{t}.clamp_(min={c})",
        "{t}[{i}] = {s}",
    ),
    "s": ("{t}.add_({c})", "{t}.mul_({c})", "{t}.fill_({s})", "{t} += {s}", "{t}.zero_()"),
}  # fmt: skip

RANGES = (
    "range(3)", "range({k})", "range(min({k}, 4))", "range(1, 4)", "range(int({s}.clamp(0, 4)))", "range(4, 0, -2)",
)  # fmt: skip

HELPER = """
def helper(a, b):
    if b > 0:
        return a * 0.5
    for j in range(2):
        a = a + b
        if a.mean() > 1:
            break
    return a
"""


@dataclass(frozen=True)
class Program:
    """A function `program(x, y, v0, n, g, flag)`, of which those of `arguments` are there. `rows` is whether the number
    of rows differs from call to call; `keeps` whether it is the forward of a module with two buffers that it writes."""

    seed: int
    lines: tuple[str, ...]
    arguments: tuple[str, ...]
    rows: bool
    keeps: bool

    @property
    def text(self) -> str:
        taken = [*(["self"] if self.keeps else []), *map(_annotated, self.arguments)]
        body = "\n".join(f"    {line}" for line in self.lines)
        return f"{HELPER}\n\ndef program({', '.join(taken)}):\n{body}\n"

    def calls(self, count: int = 6, double: bool = False) -> Iterator[dict[str, Any]]:
        """Arguments of calls; those of the first are the example."""
        chance = random.Random(self.seed * 31 + 1)
        draw = torch.Generator().manual_seed(self.seed % 2**31)
        for number in range(count):
            rows = chance.choice((1, 2, 3, 5, 9, 70)) if self.rows and number else 3
            scale = chance.choice((0.3, 1.0, 1.0, 2.0))
            made: dict[str, Any] = {
                "x": torch.randn(rows, COLUMNS, generator=draw) * scale,
                "y": torch.randn(rows, COLUMNS, generator=draw).abs(),
                "v0": torch.randn(COLUMNS, generator=draw) * scale,
                "n": chance.randint(0, 6) if number else 3,
                "g": round(chance.uniform(-2, 2), 2),
                "flag": chance.random() < 0.5,
            }
            if double:
                made = {name: each.double() if isinstance(each, torch.Tensor) else each for name, each in made.items()}
            yield {name: made[name] for name in self.arguments}


def _annotated(name: str) -> str:
    return name + {"n": ": int", "g": ": float", "flag": ": bool"}.get(name, "")


@dataclass
class Writer:
    """Writes one program."""

    chance: random.Random
    pool: dict[str, list[str]]
    own: set[str] = field(default_factory=set)  # tensors that may be written in place
    counts: int = 0
    flag: bool = False
    lines: list[str] = field(default_factory=list)

    def expression(self, template: str) -> str | None:
        """The template with variables put in; None where there is none of a kind."""
        found, position = "", 0
        while (begin := template.find("{", position)) >= 0:
            end = template.index("}", begin)
            found += template[position:begin]
            kind = template[begin + 1 : end]
            if kind == "c":
                found += str(self.chance.choice((0.25, 0.5, 0.75, 1.5, 2.0)))
            elif kind == "i":
                found += str(self.chance.randrange(COLUMNS))
            elif self.pool.get(kind):
                found += self.chance.choice(self.pool[kind][-6:])
            else:
                return None
            position = end + 1
        found += template[position:]
        return None if "flag" in found and not self.flag else found

    def drawn(self, templates: tuple[str, ...]) -> str:
        while (found := self.expression(self.chance.choice(templates))) is None:
            pass
        return found

    def put(self, depth: int, line: str) -> None:
        self.lines.append("    " * depth + line)

    def block(self, depth: int, count: int, in_loop: bool) -> None:
        """Statements of a block; what it makes anew is not seen behind it."""
        before = {kind: list(names) for kind, names in self.pool.items()}
        begun = len(self.lines)
        for _ in range(count):
            self.statement(depth, in_loop)
        if len(self.lines) == begun:
            self.put(depth, "pass")
        if depth:
            self.pool = before

    def statement(self, depth: int, in_loop: bool) -> None:
        kinds = ["assign"] * 5 + ["again"] * 2 + ["write"] * 4 + ["if"] * 3 + ["while", "for", "for", "leave"]
        kind = self.chance.choice(kinds)
        if kind in ("if", "while", "for") and depth < 3:
            getattr(self, f"_{kind}")(depth, in_loop)
        elif kind == "write":
            self._write(depth)
        elif kind == "again":
            self._again(depth)
        elif kind == "leave" and depth:
            self._leave(depth, in_loop)
        else:
            self._assign(depth)

    def _assign(self, depth: int) -> None:
        kind = self.chance.choices("mvskf", [5, 3, 4, 2, 1])[0]
        name, self.counts = f"{kind}{self.counts + 1}", self.counts + 1
        self.put(depth, f"{name} = {self.drawn(EXPRESSIONS[kind])}")
        self.pool[kind].append(name)
        self.own.add(name)

    def _again(self, depth: int) -> None:
        """A variable gets another value."""
        kind = self.chance.choices("mvskf", [4, 3, 3, 2, 1])[0]
        names = [name for name in self.pool[kind] if name in self.own and name.isidentifier()]
        if names:
            self.put(depth, f"{self.chance.choice(names)} = {self.drawn(EXPRESSIONS[kind])}")

    def _write(self, depth: int) -> None:
        kind = self.chance.choices("mvs", [5, 3, 1])[0]
        names = [name for name in self.pool[kind] if name in self.own]
        if not names:
            return
        template = self.chance.choice(WRITES[kind]).replace("{t}", self.chance.choice(names))
        found = self.expression(template)
        if found is not None:
            self.put(depth, found)

    def _if(self, depth: int, in_loop: bool) -> None:
        self.put(depth, f"if {self.drawn(CONDITIONS)}:")
        self.block(depth + 1, self.chance.randint(1, 3), in_loop)
        if self.chance.random() < 0.2:
            self.put(depth, f"elif {self.drawn(CONDITIONS)}:")
            self.block(depth + 1, self.chance.randint(1, 2), in_loop)
        if self.chance.random() < 0.5:
            self.put(depth, "else:")
            self.block(depth + 1, self.chance.randint(1, 3), in_loop)

    def _while(self, depth: int, in_loop: bool) -> None:
        name, self.counts = f"w{self.counts + 1}", self.counts + 1
        self.put(depth, f"{name} = 0")
        self.put(depth, f"while {name} < {self.chance.randint(1, 6)} and ({self.drawn(CONDITIONS)}):")
        self.put(depth + 1, f"{name} += 1")
        before = {kind: list(names) for kind, names in self.pool.items()}
        self.pool["k"].append(name)
        self.block(depth + 1, self.chance.randint(1, 3), True)
        self.pool = before

    def _for(self, depth: int, in_loop: bool) -> None:
        name, self.counts = f"i{self.counts + 1}", self.counts + 1
        self.put(depth, f"for {name} in {self.drawn(RANGES)}:")
        before = {kind: list(names) for kind, names in self.pool.items()}
        self.pool["k"].append(name)
        self.block(depth + 1, self.chance.randint(1, 3), True)
        self.pool = before

    def _leave(self, depth: int, in_loop: bool) -> None:
        ways = ["return", "raise"] + (["break", "continue"] * 2 if in_loop else [])
        way = self.chance.choice(ways)
        if way == "raise":
            self.put(depth, f"if {self.drawn(CONDITIONS)}:")
            self.put(depth + 1, 'raise ValueError("not this one")')
        elif way == "return":
            self.put(depth, f"if {self.drawn(CONDITIONS)}:")
            self.put(depth + 1, f"return {self.returned()}")
        else:
            self.put(depth, f"if {self.drawn(CONDITIONS)}:")
            self.put(depth + 1, way)

    def returned(self) -> str:
        """Always a matrix, a vector, a tensor without dimensions and two numbers."""
        picked = [self.chance.choice(self.pool[kind]) for kind in "mvskf" if self.pool[kind]]
        return ", ".join(picked)


def program_of(seed: int) -> Program:
    """Program number `seed`."""
    chance = random.Random(seed)
    arguments = ["x"]
    for name, share in (("y", 0.4), ("v0", 0.5), ("n", 0.4), ("g", 0.25), ("flag", 0.25)):
        if chance.random() < share:
            arguments.append(name)
    rows, keeps = chance.random() < 0.35, chance.random() < 0.2
    pool: dict[str, list[str]] = {"m": ["x"], "v": [], "s": [], "k": [], "f": []}
    for name, kind in (("y", "m"), ("v0", "v"), ("n", "k"), ("g", "f")):
        if name in arguments:
            pool[kind].append(name)
    writer = Writer(chance, pool, flag="flag" in arguments)
    if keeps:
        writer.own |= {"self.kept", "self.total"}
        pool["v"].append("self.kept")
        pool["s"].append("self.total")
    for kind, line in (("v", "x.mean(0)"), ("s", "x.mean()"), ("k", "2"), ("f", "0.5")):
        if not pool[kind]:
            writer.put(0, f"{kind}0 = {line}")
            pool[kind].append(f"{kind}0")
            writer.own.add(f"{kind}0")
    writer.put(0, "m0 = x * 0.5")
    pool["m"].append("m0")
    writer.own.add("m0")
    writer.block(0, chance.choice(LENGTHS), False)
    writer.put(0, f"return {writer.returned()}")
    return Program(seed, tuple(writer.lines), tuple(arguments), rows, keeps)
