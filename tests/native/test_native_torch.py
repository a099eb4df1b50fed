"""Guards and launcher on real tensors."""

import ctypes
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from smelt._native import Entry, Guards, Launcher, Region  # noqa: E402


def spec(tensor: Any) -> tuple[Any, ...]:
    shape, stride = tuple(tensor.shape), tensor.stride()
    return ("tensor", type(tensor), tensor.dtype, tensor.device, shape, stride, tensor.requires_grad)


def guards(*tensors: Any) -> Guards:
    return Guards(tuple((("slot", i), (spec(t),), (), True, f"t{i}") for i, t in enumerate(tensors)), True)


SAMPLES = {
    "plain": torch.ones(2, 3),
    "half": torch.ones(2, 3, dtype=torch.float16),
    "bfloat16": torch.ones(2, 3, dtype=torch.bfloat16),
    "double": torch.ones(2, 3, dtype=torch.float64),
    "int": torch.ones(2, 3, dtype=torch.int32),
    "byte": torch.ones(2, 3, dtype=torch.uint8),
    "char": torch.ones(2, 3, dtype=torch.int8),
    "bool": torch.ones(2, 3, dtype=torch.bool),
    "complex": torch.ones(2, 3, dtype=torch.complex64),
    "float8": torch.ones(2, 3).to(torch.float8_e4m3fn),
    "float8 wide": torch.ones(2, 3).to(torch.float8_e5m2),
    "meta": torch.ones(2, 3, device="meta"),
    "transposed": torch.ones(3, 2).t(),
    "one more dimension": torch.ones(2, 3, 1),
    "one fewer": torch.ones(6),
    "scalar": torch.tensor(1.0),
    "other shape": torch.ones(3, 3),
    "odd stride of one row": torch.empty_strided((1, 3), (77, 1)),
    "one row": torch.ones(1, 3),
    "needs gradient": torch.ones(2, 3, requires_grad=True),
    "parameter": torch.nn.Parameter(torch.ones(2, 3)),
    "buffer-like parameter": torch.nn.Parameter(torch.ones(2, 3), requires_grad=False),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_each_tensor_passes_its_own_guard_and_no_other(name: str) -> None:
    made = guards(SAMPLES[name])
    for _ in range(3):  # before and after the check has learned
        for other, tensor in SAMPLES.items():
            passed = made.check([tensor])
            assert (passed is not None) == (other == name), other
            if passed is not None:
                assert passed[0] is tensor
            else:
                assert made.explain([tensor]) is not None


@pytest.mark.parametrize(
    ("plain", "lazy", "word"),
    [
        (torch.ones(3), torch._neg_view(torch.ones(3)), "lazily negated"),
        (torch.ones(6)[::2], torch.ones(3, dtype=torch.complex64).conj().imag, "lazily negated"),
        (torch.ones(3, dtype=torch.complex64), torch.ones(3, dtype=torch.complex64).conj(), "lazily conjugated"),
        (torch.ones(3, dtype=torch.complex64), torch._neg_view(torch.ones(3, dtype=torch.complex64)), "lazily negated"),
        (torch.ones(3), torch._efficientzerotensor((3,)), "all zeros and has none"),
        (torch.ones(3), torch.ones(3).to_mkldnn(), "laid out by another library"),
    ],
)
def test_a_tensor_that_is_more_than_its_memory_never_passes(plain: Any, lazy: Any, word: str) -> None:
    made = guards(plain)
    for _ in range(3):
        assert made.check([lazy]) is None
        assert made.explain([lazy]) == f"t0: expected memory to be read as it is, got a tensor that is {word}"
        assert made.check([plain]) is not None
    assert guards(lazy).check([lazy]) is None


def test_changes_in_place_are_seen() -> None:
    x = torch.ones(2, 3)
    made = guards(x)
    for _ in range(2):
        assert made.check([x]) == (x,)
    x.requires_grad_(True)
    assert made.explain([x]) == "t0: expected requires_grad False, got True"
    x.requires_grad_(False)
    assert made.check([x]) == (x,)
    x.t_()
    assert made.explain([x]) == "t0: expected shape (2, 3), got (3, 2)"
    x.data = torch.ones(2, 3, dtype=torch.float64)
    assert made.explain([x]) == "t0: expected dtype torch.float32, got torch.float64"


def test_module_under_a_region() -> None:
    module = torch.nn.Linear(3, 3)
    x = torch.ones(2, 3)
    seen = []
    region = Region(lambda function, slots: seen.append(function.__qualname__))
    assert torch.equal(region.call(module, x), module(x))
    assert "Linear.forward" in seen
    forward = type(module).forward.__code__
    made = Guards(((("slot", 1), (spec(x),), (), True, "x"),))
    region.add(forward, Entry(made, lambda x: x * 0))
    assert torch.equal(region.call(module, x), torch.zeros(2, 3))
    assert torch.equal(region.call(module, torch.ones(4, 3)), module(torch.ones(4, 3)))


def test_launcher_on_tensors() -> None:
    def add_one(buffers: Any, threads: int, space: object) -> None:
        values = ctypes.cast(buffers[0], ctypes.POINTER(ctypes.c_float))
        for i in range(3):
            values[i] += 1

    callback = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int64, ctypes.c_void_p)(add_one)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert address is not None
    x = torch.zeros(6)
    Launcher(address, 1, 0, 0)(1, x[2:])  # the pointer has the storage offset in it
    assert x.tolist() == [0, 0, 1, 1, 1, 0]
