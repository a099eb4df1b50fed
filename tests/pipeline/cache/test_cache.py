"""Compiled graphs out of the disk cache: the same answers as freshly compiled, whatever happened to the files."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import smelt
from smelt import cli
from smelt.ir.artifact_file.container import Section
from smelt.ir.artifact_file.layout import CodeHeader, Kind
from smelt.ir.table.layout import words_of
from smelt.ir.table.read import TableReader
from smelt.runtime.cache import CacheFile, CacheStore, directory, file_bytes
from tests import processes
from tests.processes import Started


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CacheStore]:
    """The cache switched on, in a directory of its own."""
    monkeypatch.delenv("SMELT_CACHE", raising=False)
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    smelt.reset()
    yield CacheStore(tmp_path, 1 << 30)
    smelt.reset()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.norm(torch.nn.functional.gelu(self.first(x))))
        return out


def trained(call: Callable[..., torch.Tensor], model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    y = call(x)
    y.square().mean().backward()
    return [y.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def fresh(function: Any) -> Any:
    """Compiled as in a new process, but for the cache on disk."""
    smelt.reset()
    return smelt.compile(function, options={"fallback": False})


def same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


def test_training_out_of_the_cache_is_bit_for_bit_what_was_compiled(cache: CacheStore) -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(5, 8)
    first = trained(fresh(model), model, x)
    assert smelt.counters["cache_writes"] == 2  # forward and backward
    second = trained(fresh(model), model, x)
    assert smelt.counters["cache_hits"] == 2
    assert smelt.counters["joint_graphs"] == 0
    assert same(second, first)
    for found, expected in zip(second, trained(model, model, x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def f_writes(x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    state.add_(x.sum())
    return x.t(), x.exp() * state


def f_dropout(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(x, 0.5) + state


def f_library(x: torch.Tensor, state: torch.Tensor) -> Any:
    values, places = x.sort(dim=1, descending=True)
    return values * 2, places, x @ x.t(), None, 3, x


def f_cat(x: torch.Tensor, state: torch.Tensor) -> Any:
    return torch.cat([x, x * 2], 1).softmax(-1).std(dim=0), x.to(torch.bfloat16).float()


@pytest.mark.parametrize("function", [f_writes, f_dropout, f_library, f_cat])
def test_all_kinds_of_results_come_out_as_from_the_compiler(cache: CacheStore, function: Any) -> None:
    def outcome(call: Any) -> list[Any]:
        torch.manual_seed(1)
        x, state = torch.randn(4, 6, requires_grad=True), torch.zeros(())
        made = call(x, state)
        made = list(made) if isinstance(made, tuple) else [made]
        torch.stack([y.sum() for y in made if isinstance(y, torch.Tensor) and y.grad_fn is not None]).sum().backward()
        shapes = [(y.shape, y.stride()) for y in made if isinstance(y, torch.Tensor)]
        plain = [y for y in made if not isinstance(y, torch.Tensor)]
        return [*(y.detach().clone() for y in made if isinstance(y, torch.Tensor)), x.grad, state, shapes, plain]

    first, second = outcome(fresh(function)), outcome(fresh(function))
    assert smelt.counters["cache_hits"] == 2
    assert first[-2:] == second[-2:]
    assert same(second[:-2], first[:-2])


def test_second_derivatives_through_a_graph_out_of_the_cache(cache: CacheStore) -> None:
    def penalty(call: Any) -> list[torch.Tensor]:
        x = torch.linspace(-1, 1, 6).requires_grad_()
        (slope,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        slope.square().sum().backward()
        assert x.grad is not None
        return [slope.detach(), x.grad]

    function = lambda x: (x.sin() * x).exp()  # noqa: E731
    expected = penalty(function)
    penalty(fresh(function))
    found = penalty(fresh(function))
    assert smelt.counters["cache_hits"] == 1
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_each_size_of_a_graph_with_open_sizes_has_an_entry(cache: CacheStore) -> None:
    function = lambda x: x.sin().sum(0)  # noqa: E731
    for _ in range(2):
        compiled = fresh(function)
        for size in (3, 4, 5):
            x = torch.randn(size, 4)
            torch.testing.assert_close(compiled(x), function(x))
    assert smelt.counters["cache_hits"] >= 3
    assert smelt.counters["cache_misses"] == 0


def compiles_again(function: Any, *args: Any, **options: Any) -> bool:
    smelt.reset()
    smelt.compile(function, options={"fallback": False, **options})(*args)
    assert smelt.counters["cache_hits"] + smelt.counters["cache_misses"] == 1
    return bool(smelt.counters["cache_misses"])


def test_what_makes_a_key(cache: CacheStore, monkeypatch: pytest.MonkeyPatch) -> None:
    scale = [2.0]
    function = lambda x: (x * scale[0]).relu()  # noqa: E731
    x = torch.randn(4, 6)
    assert compiles_again(function, x)
    assert not compiles_again(function, torch.randn(4, 6))
    assert not compiles_again(lambda y: (y * scale[0]).relu(), x)
    assert compiles_again(function, x.t())
    assert compiles_again(function, x.double())
    assert compiles_again(function, x.clone().requires_grad_())
    assert compiles_again(function, torch.randn(4, 7))
    assert compiles_again(function, x, max_rewrites=0)
    assert not compiles_again(function, x, threads=1)
    with torch.autocast("cpu"):
        assert compiles_again(function, x)
    with torch.backends.cudnn.flags(enabled=False):  # recurrent layers on CUDA are traced otherwise
        assert compiles_again(function, x)
    with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH]):
        assert compiles_again(function, x)
    scale[0] = -0.0
    assert compiles_again(function, x)
    scale[0] = 0.0
    assert compiles_again(function, x)
    monkeypatch.setattr("smelt.pipeline.cache.keys.installation", lambda: ("another version",))
    assert compiles_again(function, x)


def test_graphs_without_a_key_are_compiled_each_time(cache: CacheStore) -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return gradient * 2 * x  # type: ignore[no-any-return]

    x = torch.randn(4, requires_grad=True)
    fresh(lambda x: Square.apply(x).sum())(x).backward()
    assert smelt.counters["cache_unstorable"] == 1
    assert cache.usage().files == 0
    torch.testing.assert_close(x.grad, 2 * x.detach())


def test_explaining_shows_the_stages_though_the_graph_is_cached(cache: CacheStore) -> None:
    function = lambda x: x.sin() + 1  # noqa: E731
    fresh(function)(torch.randn(3))
    smelt.reset()
    explained = smelt.explain(function)(torch.randn(3))
    assert "fuse" in str(explained.compile_times)
    assert smelt.counters["cache_hits"] == 0


def test_the_cache_switched_off_leaves_no_trace(cache: CacheStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smelt.config, "disk_cache", False)
    fresh(lambda x: x + 1)(torch.randn(3))
    assert not any(name.startswith("cache") for name in smelt.counters)
    assert cache.usage().files == 0


def entry(cache: CacheStore) -> Path:
    """The file of the graph, not the one of its capture."""
    (path,) = [each for each in cache.directory.glob("*.smelt") if b"capture\\nsmelt " not in each.read_bytes()]
    return path


def wavy(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * 2 + x.mean(1, keepdim=True)).softmax(1)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damage_anywhere_gives_the_same_answer_and_a_whole_file(cache: CacheStore, data: st.DataObject) -> None:
    x = torch.linspace(-3, 3, 24).view(4, 6)
    expected = fresh(wavy)(x)
    path = entry(cache)
    whole = path.read_bytes()
    damaged = bytearray(whole)
    place = data.draw(st.integers(0, 2**20))  # how long the file is differs by a few bytes from time to time
    if data.draw(st.booleans()):
        del damaged[place % len(whole) :]
    else:
        bit = place % (8 * len(whole))
        damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)
    assert torch.equal(fresh(wavy)(x), expected)
    assert smelt.counters["cache_misses"] == 1
    assert torch.equal(fresh(wavy)(x), expected)
    assert smelt.counters["cache_hits"] == 1


def test_contents_that_are_whole_but_say_nonsense_are_dropped(
    cache: CacheStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with right checksums and key, whose sections are another's: as if written by other code of our version."""
    x = torch.linspace(-3, 3, 24).view(4, 6)
    expected = fresh(wavy)(x)
    keys: list[str] = []
    get = CacheStore.get

    def noting(self: CacheStore, key: str) -> CacheFile | None:
        if not key.startswith("capture\n"):
            keys.append(key)
        return get(self, key)

    monkeypatch.setattr(CacheStore, "get", noting)
    fresh(wavy)(x)
    whole = cache.get(keys[0])
    assert whole is not None
    values, table, codes = whole.values, bytes(whole.sections[0].data), whole.sections[1:]
    text = json.dumps(values["program"])
    programs = TableReader(table).header.blob - 8 * len(words_of("programs"))  # the last section
    consuming = programs + 8 * [word.name for word in words_of("programs")].index("consuming")

    def about(program: str) -> CacheFile:
        return CacheFile({**values, "program": json.loads(program)}, whole.sections)

    def with_table(changed: bytes) -> CacheFile:
        return CacheFile(values, (Section.of(Kind.TABLE, changed), *codes))

    def with_code(changed: bytes) -> CacheFile:
        return CacheFile(values, (whole.sections[0], Section.of(Kind.CODE, changed), *codes[1:]))

    code, entry = bytes(codes[0].data), 8 * len(CodeHeader._fields)
    broken = [
        CacheFile({}),
        CacheFile(values),
        CacheFile({}, whole.sections),
        CacheFile(values, whole.sections[:-1]),  # no code
        CacheFile(values, (*whole.sections, Section.of(Kind.CODE, code))),
        CacheFile(values, (*codes, whole.sections[0])),
        CacheFile(values, (Section.of(Kind.CODE, table), *codes)),
        about('""'),
        about("[[],null]"),
        about("[[],5]"),
        about(text.replace('"k0"', '"k9"', 1)),  # a function that is not there
        about(text.replace('"JointPlan"', '"JointPlane"')),
        with_table(b""),
        with_table(table[:-1]),
        with_table(table + b"\0"),
        with_table(table.replace(b"float32", b"float3x")),
        with_table(table.replace(b"k0", b"k9")),
        with_table(table[:8] + b"\x09" + table[9:]),  # of another version
        with_table(table[:consuming] + b"\x01" + table[consuming + 1 :]),
        with_code(b""),
        with_code(code[:-1]),
        with_code(code + b"\0"),
        with_code(code[:entry] + b"\xff" * 8 + code[entry + 8 :]),
        with_code(b"\x7f" + code[1:]),  # more functions than there are
    ]
    for stored in broken:
        assert stored != whole
        cache.put(keys[0], stored)
        assert torch.equal(fresh(wavy)(x), expected)
        assert smelt.counters["cache_hits"] == 0
        assert torch.equal(fresh(wavy)(x), expected)
        assert smelt.counters["cache_hits"] == 1


PROCESS = """
import sys, torch, smelt
import smelt.pipeline.cache.keys
smelt.pipeline.cache.keys._files = lambda package: []  # should somebody save a file of the package meanwhile
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 3))
x = torch.randn(5, 8)
y = smelt.compile(model, options={"fallback": False})(x)
y.sum().backward()
total = sum(p.grad.double().sum().item() for p in model.parameters()) + y.double().sum().item()
print(total.hex(), smelt.counters["cache_hits"], "llvmlite" in sys.modules)
"""


def start(directory: Path) -> Started:
    environment = {"SMELT_CACHE": None, "SMELT_CACHE_DIR": str(directory)}
    return processes.start(PROCESS, begin=processes.PLAIN, environment=environment)


def test_a_new_process_needs_no_compiler_and_two_at_once_do_not_disturb_each_other(cache: CacheStore) -> None:
    first = [process.done().stdout.split() for process in [start(cache.directory), start(cache.directory)]]
    assert first[0][0] == first[1][0]
    assert cache.usage().files == 3  # the forward, the backward, the capture
    again = start(cache.directory).done().stdout.split()
    assert again == [first[0][0], "2", "False"]


def test_a_process_killed_at_any_moment_leaves_a_cache_that_works(cache: CacheStore) -> None:
    process = start(cache.directory)
    while process.runs() and not any(cache.directory.iterdir()):
        pass  # until it has begun to write
    process.kill()
    process.done()
    done = start(cache.directory).done().stdout.split()
    assert start(cache.directory).done().stdout.split() == [done[0], "2", "False"]


def test_a_file_is_inspected(cache: CacheStore, capsys: pytest.CaptureFixture[str]) -> None:
    fresh(wavy)(torch.linspace(-3, 3, 24).view(4, 6))
    assert cli.main(["inspect", str(entry(cache))]) == 0
    shown = capsys.readouterr().out
    assert "a file of the disk cache: " in shown and "float32[4, 6], input" in shown
    assert re.search(r"^ +\d+ +k\d+\w*\(%0", shown, re.MULTILINE), shown
    (capture,) = set(cache.directory.glob("*.smelt")) - {entry(cache)}
    assert cli.main(["inspect", str(capture)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["capture"]
    capture.write_bytes(file_bytes("key", CacheFile({}, (Section.of(Kind.TABLE, b""),))))
    assert cli.main(["inspect", str(capture)]) != 0
    assert "SM050" in capsys.readouterr().err


def test_the_command_line(cache: CacheStore, capsys: pytest.CaptureFixture[str]) -> None:
    fresh(lambda x: x + 1)(torch.randn(3))
    assert directory() == cache.directory
    assert cli.main(["cache", "info"]) == 0
    shown = capsys.readouterr().out
    assert str(cache.directory) in shown
    assert "graphs and captures: 2" in shown
    assert cli.main(["cache", "clear"]) == 0
    assert "deleted 2 files" in capsys.readouterr().out
    assert cache.usage().files == 0
    fresh(lambda x: x + 1)(torch.randn(3))
    assert smelt.counters["cache_misses"] == 1
