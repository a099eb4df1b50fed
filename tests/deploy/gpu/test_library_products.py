"""Products of artifacts by a library that is found when a model is opened: a cuBLASLt that multiplies on the host."""

import copy
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.codegen.gpu import grid_plan
from smelt.ir.products import library_product
from tests.deploy.gpu.fake_gpu import CHIP, FakeGpu
from tests.deploy.models import MODELS
from tests.targets import none_by_default

pytestmark = pytest.mark.skipif(torch.version.cuda is not None, reason="a PyTorch for CUDA has loaded the real library")
F = torch.nn.functional
Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


@pytest.fixture(autouse=True)
def small_products(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Products of any size are worth a call. Where PyTorch cannot multiply bfloat16 by oneDNN, it switches that off for
    the process."""
    monkeypatch.setattr(library_product, "LEAST_WORK", 1)
    torch.manual_seed(0)
    enabled = torch._C._get_mkldnn_enabled()
    with none_by_default():
        yield
    torch._C._set_mkldnn_enabled(enabled)


_RUN = """
import ctypes, json, sys, threading
from smelt.deploy.runtime import Model, Session, TensorAt
path, calls = sys.argv[1], json.loads(sys.argv[2])
model = Model(path)
session = Session(model)
def run(call, session):
    data = [open(each["file"], "rb").read() for each in call["inputs"]]
    kept = [ctypes.create_string_buffer(each, len(each)) for each in data]
    given = [
        TensorAt(each["dtype"], tuple(each["sizes"]), None, ctypes.addressof(memory))
        for each, memory in zip(call["inputs"], kept)
    ]
    session.run(given)
    for number, (file, size) in enumerate(call["outputs"]):
        open(file, "wb").write(ctypes.string_at(session.output(number).address, size))
if len(sys.argv) > 3:
    threads = [threading.Thread(target=run, args=(call, Session(model))) for call in calls]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
else:
    for call in calls:
        run(call, session)
"""


@pytest.fixture(autouse=True)
def no_kernels_for_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The products here are small: kernels of few rows would take them before the library."""
    monkeypatch.setattr(grid_plan, "few_rows", lambda *given: "left to the library")


class Installed:
    """An artifact, and a machine that it runs on."""

    def __init__(self, artifact: smelt.Artifact, folder: Path, *, library: bool = True) -> None:
        self.artifact, self.folder = artifact, folder
        self.path = artifact.save(folder / "model.smelt")
        self.gpu = FakeGpu(artifact, folder)
        if library:
            self.gpu.install_library()

    @property
    def products(self) -> int:
        """How many products of the file a library may compute."""
        (part,) = self.artifact.artifact_file.targets
        return sum(grid.product is not None for kernel in part.table.kernels for grid in kernel.grids)

    def run(
        self,
        calls: Sequence[tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]],
        *,
        threads: bool = False,
        **settings: str,
    ) -> None:
        """Call it with inputs, and write what comes out into tensors. `threads`: each call on a thread of its own."""
        described = []
        for place, (inputs, outputs) in enumerate(calls):
            files = [self.folder / f"in{place}.{number}" for number in range(len(inputs))]
            for file, each in zip(files, inputs, strict=True):
                file.write_bytes(_bytes(each))
            described.append({
                "inputs": [
                    {"file": str(file), "dtype": str(each.dtype).removeprefix("torch."), "sizes": list(each.shape)}
                    for file, each in zip(files, inputs, strict=True)
                ],
                "outputs": [
                    (str(self.folder / f"out{place}.{number}"), each.nbytes) for number, each in enumerate(outputs)
                ],
            })  # fmt: skip
        known = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        more = ["threads"] * threads
        self.gpu.run(sys.executable, "-c", _RUN, self.path, json.dumps(described), *more, **known, **settings)
        for place, (_, outputs) in enumerate(calls):
            for number, each in enumerate(outputs):
                data = bytearray((self.folder / f"out{place}.{number}").read_bytes())
                each.copy_(torch.frombuffer(data, dtype=each.dtype).reshape(each.shape))
        report = self.gpu.report()
        assert not any(report[name] for name in ("left", "modules", "streams", "contexts"))


def _bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())


def _outputs(results: Any) -> list[torch.Tensor]:
    found = results if isinstance(results, tuple) else (results,)
    return [each.detach() for each in found]


def _assert_near(found: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> None:
    """Not further from the exact result than twice eager's error, and a few units in the last place."""
    scale = float(exact.abs().max()) or 1.0
    allowed = 2 * float((eager.double() - exact).abs().max()) + 4 * torch.finfo(eager.dtype).eps * scale
    assert float((found.double() - exact).abs().max()) <= allowed


def _wide(case: Callable[..., Any], args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    model = copy.deepcopy(case).double() if isinstance(case, torch.nn.Module) else case
    return _outputs(model(*(each.double() if each.is_floating_point() else each for each in args)))


def _check(case: Callable[..., Any], args: tuple[torch.Tensor, ...], installed: Installed, **settings: str) -> None:
    with torch.no_grad():
        eager, exact = _outputs(case(*args)), _wide(case, args)
    found = [torch.empty_like(each) for each in eager]
    installed.run([(args, found)], **settings)
    for one, other, third in zip(found, eager, exact, strict=True):
        _assert_near(one, other, third)


class Block(torch.nn.Module):
    """A bias, a gelu, a residual."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.up, self.down = (torch.nn.Linear(*sizes, dtype=dtype) for sizes in ((24, 40), (40, 24)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = x + self.down(F.gelu(self.up(x), approximate="tanh"))
        return found


def _exported(case: Callable[..., Any], args: tuple[torch.Tensor, ...], **options: Any) -> smelt.Artifact:
    return smelt.export(case, args, targets=(CHIP,), **options)


DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_linear_layers_with_all_that_follows(dtype: torch.dtype, tmp_path: Path) -> None:
    model, x = Block(dtype).eval(), torch.randn(10, 24, dtype=dtype)
    installed = Installed(_exported(model, (x,)), tmp_path)
    assert installed.products == 2
    _check(model, (x,), installed)
    report = installed.gpu.library_report()
    biases = 0 if dtype is torch.float64 else 2
    assert report == {"products": 2, "choices": 2, "left": 0, "biases": biases}


@pytest.mark.parametrize("told", ["", "empty", "refuses", "broken"])
def test_what_no_library_computes_is_computed_by_the_file(told: str, tmp_path: Path) -> None:
    model, x = Block(torch.float32).eval(), torch.randn(10, 24)
    installed = Installed(_exported(model, (x,)), tmp_path, library=told != "")
    _check(model, (x,), installed, **({"SMELT_FAKE_LIBRARY": told} if told else {}))
    if told in ("empty", "refuses"):
        report = installed.gpu.library_report()
        assert report["products"] == 0 and report["choices"] == 2 and report["left"] == 0


def _products(dtype: torch.dtype) -> dict[str, Case]:
    def tensor(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, dtype=dtype)

    a, b, c = tensor(8, 12), tensor(12, 16), tensor(16, 12)
    d, e = tensor(3, 8, 12), tensor(3, 12, 5)
    heads = tensor(2, 6, 3 * 4 * 8)

    def attend(x: torch.Tensor) -> torch.Tensor:
        q, k, v = (each.reshape(2, 6, 4, 8).transpose(1, 2) for each in x.split(32, dim=2))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 6, 32)

    return {
        "plain": (torch.mm, (a, b)),
        "transposed right": (lambda x, y: x @ y.t(), (a, c)),
        "transposed left": (lambda x, y: x.t() @ y, (tensor(12, 8), b)),
        "both": (lambda x, y: x.t() @ y.t(), (tensor(12, 8), c)),
        "transposed result": (lambda x, y: (x @ y).t().contiguous(), (a, b)),
        "vector": (lambda x, y: x @ y, (a, tensor(12))),
        "row": (lambda x, y: x @ y, (tensor(1, 12), b)),
        "batched": (torch.bmm, (d, e)),
        "batched transposed": (lambda x, y: x @ y.transpose(1, 2), (d, tensor(3, 5, 12))),
        "broadcast": (lambda x, y: x @ y, (tensor(2, 3, 8, 12), tensor(12, 5))),
        "part of a matrix": (lambda x, y: x[2:6, :6] @ y[6:, 3:11], (a, b)),
        "one column": (lambda x, y: x @ y, (a, tensor(12, 1))),
        "one term": (lambda x, y: x @ y, (tensor(8, 1), tensor(1, 16))),
        "two outputs": (lambda x, y: (x @ y, torch.tanh(x @ y)), (a, b)),
        "attention": (attend, (heads,)),
    }  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products_of_every_layout(dtype: torch.dtype, tmp_path: Path) -> None:
    cases = _products(dtype)
    args = tuple(arg for _, given in cases.values() for arg in given)

    def all_cases(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        left, found = list(args), []
        for case, given in cases.values():
            found += _outputs(case(*left[: len(given)]))
            del left[: len(given)]
        return tuple(found)

    installed = Installed(_exported(all_cases, args), tmp_path)
    _check(all_cases, args, installed)
    report = installed.gpu.library_report()
    # One of each; of attention in float32 two for each of two images, in 16 bits none: it is a kernel.
    assert report["products"] == len(cases) + (-1 if dtype.itemsize == 2 else 3) and report["left"] == 0


def test_sizes_that_vary_are_planned_once_each(tmp_path: Path) -> None:
    model, x = Block(torch.float32).eval(), torch.randn(10, 24)
    artifact = _exported(model, (x,), dynamic={"x": {0: smelt.Dimension("rows", 1, 100)}})
    installed = Installed(artifact, tmp_path)
    assert installed.products == 4  # of one row, and of more
    calls = []
    for rows in (10, 3, 10, 1, 64, 3):
        given = torch.randn(rows, 24)
        calls.append(((given,), [torch.empty(rows, 24)]))
    installed.run(calls)
    for (given,), (found,) in calls:
        with torch.no_grad():
            _assert_near(found, model(given), _wide(model, (given,))[0])
    # To a single row a bias is added like any other row.
    assert installed.gpu.library_report() == {"products": 12, "choices": 8, "left": 0, "biases": 10}


def test_sessions_multiply_on_several_threads(tmp_path: Path) -> None:
    model, x = Block(torch.float32).eval(), torch.randn(10, 24)
    installed = Installed(_exported(model, (x,)), tmp_path)
    calls = [((torch.randn(10, 24),), [torch.empty(10, 24)]) for _ in range(8)]
    installed.run(calls, threads=True)
    for (given,), (result,) in calls:
        with torch.no_grad():
            _assert_near(result, model(given), _wide(model, (given,))[0])
    assert installed.gpu.library_report() == {"products": 16, "choices": 16, "left": 0, "biases": 16}


_FLAGS = """
import ctypes, sys
from smelt.deploy.runtime import _OpenOptions, library
model = ctypes.c_void_p()
options = _OpenOptions(ctypes.sizeof(_OpenOptions), int(sys.argv[2]), None, 0, 0)
library().smelt_model_open(sys.argv[1].encode(), ctypes.byref(options), ctypes.byref(model), None)
print("libcublasLt" in open("/proc/self/maps").read())
library().smelt_model_close(model)
"""


def test_a_model_can_be_opened_without_the_library(tmp_path: Path) -> None:
    model, x = Block(torch.float32).eval(), torch.randn(10, 24)
    installed = Installed(_exported(model, (x,)), tmp_path)
    known = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    own_products = 4
    for flags in (0, own_products):
        printed = installed.gpu.run(sys.executable, "-c", _FLAGS, installed.path, flags, **known)
        assert printed == f"{flags == 0}\n"


def test_gpt2_multiplies_by_the_library(tmp_path: Path) -> None:
    model, _, kwargs = MODELS["gpt2"]()
    ids = kwargs["input_ids"]

    def logits(input_ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model(input_ids=input_ids).logits
        return found

    installed = Installed(_exported(logits, (ids,)), tmp_path)
    with torch.no_grad():
        eager = logits(ids)
    found = torch.empty_like(eager)
    installed.run([((ids,), [found])])
    torch.testing.assert_close(found, eager, rtol=1e-4, atol=1e-4)
    layers, images = 2, 2
    # Of each layer four linear layers, and the products of its attention for each image.
    assert installed.gpu.library_report()["products"] == layers * (4 + 2 * images) + 1


def test_a_training_step_multiplies_by_the_library(tmp_path: Path) -> None:
    model = Block(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(10, 24)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    installed = Installed(smelt.export(step, (x,), targets=(CHIP,)), tmp_path)
    found = [torch.empty(()) for _ in range(4)]
    installed.run([((x,), [each]) for each in found])
    expected = [step(x).detach() for _ in range(4)]
    torch.testing.assert_close(torch.stack(found), torch.stack(expected), rtol=1e-5, atol=1e-6)
    # Two forward, two of weights and one of what the second layer was given.
    assert installed.gpu.library_report()["products"] == 4 * 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_only_wide_gradients_of_attention_are_products_of_the_library(dtype: torch.dtype, tmp_path: Path) -> None:
    args = tuple(torch.randn(2, 3, 16, 8, dtype=dtype) for _ in range(4))

    def gradients(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            factors = [each.detach().requires_grad_() for each in (q, k, v)]
            F.scaled_dot_product_attention(*factors, is_causal=True).backward(grad)
        return tuple(each.grad for each in factors if each.grad is not None)

    installed = Installed(_exported(gradients, args), tmp_path, library=dtype is torch.float32)
    _check(gradients, args, installed)
    if dtype is torch.float32:  # two forward, and of the gradients the scores and four
        assert installed.gpu.library_report()["products"] >= 5
    else:  # kernels without scores in memory
        assert not installed.products


def test_convolutions_and_small_products_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    convolution = torch.nn.Conv2d(3, 4, 3, padding=1).eval()
    assert not Installed(_exported(convolution, (torch.randn(1, 3, 8, 8),)), tmp_path, library=False).products
    monkeypatch.undo()
    (tmp_path / "small").mkdir()
    model, x = Block(torch.float32).eval(), torch.randn(10, 24)
    assert not Installed(_exported(model, (x,)), tmp_path / "small", library=False).products
