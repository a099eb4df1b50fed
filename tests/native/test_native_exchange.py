"""Tensor checks through DLPack's exchange interface: as strict as through attributes, which remain the fallback."""

import ctypes
from typing import Any

import pytest

from smelt._native import Guards


class Described(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32),
        ("index", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("stride", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


DESCRIBE = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Described))


class Interface(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("unused", ctypes.c_void_p * 4),
        ("describe", DESCRIBE),
        ("stream", ctypes.c_void_p),
    )


def describe(tensor: Any, out: Any) -> int:
    """Exceptions of a ctypes callback are lost, so a refusal comes without one: smelt must not mind."""
    if tensor.refuses:
        return -1
    tensor.described += 1
    rank = len(tensor.sizes)
    tensor.kept = (ctypes.c_int64 * rank)(*tensor.sizes), (ctypes.c_int64 * rank)(*tensor.strides)
    code, bits, lanes = tensor.number
    out[0] = Described(None, *tensor.place, rank, code, bits, lanes, *tensor.kept, 0)
    return 0


INTERFACE = Interface(1, 3, (ctypes.c_void_p * 4)(), DESCRIBE(describe), None)
NEWER = Interface(2, 0, (ctypes.c_void_p * 4)(), DESCRIBE(describe), None)
NAME = b"dlpack_exchange_api"


def capsule(interface: Interface, name: bytes = NAME) -> object:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    made: object = new(ctypes.addressof(interface), name, None)
    return made


class Tensor:
    __dlpack_c_exchange_api__ = capsule(INTERFACE)
    number = (2, 32, 1)
    place = (1, 0)
    sizes: tuple[int, ...] = (2, 3)
    strides: tuple[int, ...] = (3, 1)
    requires_grad = False
    refuses = False
    negated = False

    def __init__(self, **changes: object) -> None:
        self.described = self.read = 0
        self.__dict__.update(changes)

    @property
    def dtype(self) -> object:
        self.read += 1
        return {(2, 32, 1): float, (2, 16, 1): complex, (5, 64, 1): float}.get(self.number, int)

    @property
    def device(self) -> object:
        return self.place

    @property
    def shape(self) -> object:
        return self.sizes

    def stride(self) -> object:
        return self.strides

    def is_neg(self) -> bool:
        return self.negated

    def is_conj(self) -> bool:
        return False


def guards(type_: type = Tensor, shape: Any = (2, 3), stride: Any = (3, 1), place: Any = (1, 0)) -> Guards:
    return Guards(((("slot", 0), (("tensor", type_, float, place, shape, stride, False),), (), False, "x"),))


def taught(**options: Any) -> Guards:
    """Guards that have seen a tensor pass."""
    made = guards(**options)
    first = Tensor()
    assert made.check([first]) == () and first.read == 1
    return made


def test_attributes_are_not_read_once_learned() -> None:
    made, tensor = taught(), Tensor()
    assert made.check([tensor]) == ()
    assert (tensor.read, tensor.described) == (0, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"number": (2, 16, 1)},
        {"number": (4, 32, 1)},
        {"number": (2, 32, 2)},
        {"place": (2, 0)},
        {"place": (1, 1)},
        {"sizes": (2, 4)},
        {"sizes": (2, 3, 1), "strides": (3, 1, 1)},
        {"sizes": (2,), "strides": (3,)},
        {"strides": (1, 2)},
        {"requires_grad": True},
        {"negated": True},
    ],
)
def test_every_difference_counts(changes: dict[str, Any]) -> None:
    for made in (guards(), taught()):
        assert made.check([Tensor(**changes)]) is None
        assert made.explain([Tensor(**changes)]) is not None
        assert made.check([Tensor()]) == ()


def test_any_sizes() -> None:
    made = taught(shape=(None, 3), stride=(None, 1))
    assert made.check([Tensor(sizes=(9, 3), strides=(7, 1))]) == ()
    assert made.check([Tensor(sizes=(9, 4), strides=(7, 1))]) is None
    assert made.check([Tensor(strides=(3, 2))]) is None
    assert taught(stride=None).check([Tensor(strides=(5, 5))]) == ()


def test_a_refusal_goes_back_to_attributes() -> None:
    made = taught()
    refusing = Tensor(refuses=True)
    assert made.check([refusing]) == () and refusing.read == 1
    assert made.check([Tensor(refuses=True, sizes=(2, 4))]) is None
    after = Tensor()
    assert made.check([after]) == () and (after.read, after.described) == (1, 0)


def test_what_the_interface_cannot_tell_apart_is_read_from_attributes() -> None:
    for changes, place in (({"number": (5, 64, 1)}, (1, 0)), ({"place": (12, 0)}, (12, 0))):
        made = guards(place=place)
        for _ in range(3):
            tensor = Tensor(**changes)
            assert made.check([tensor]) == () and tensor.read == 1


def test_unknown_interfaces_are_left_alone() -> None:
    for interface in (capsule(NEWER), capsule(INTERFACE, b"other"), None, 3):
        kind = type("Other", (Tensor,), {"__dlpack_c_exchange_api__": interface})
        made = guards(kind)
        for _ in range(3):
            tensor = kind()
            assert made.check([tensor]) == () and (tensor.read, tensor.described) == (1, 0)


def test_subclass_is_another_type() -> None:
    assert taught().check([type("Sub", (Tensor,), {})()]) is None
