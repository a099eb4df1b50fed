"""Lazy tensors: operators are recorded, and what is recorded runs as one fused program when a value is needed.

    smelt.lazy.enable()
    x = torch.randn(1000, device="lazy")
    y = (x + 1) * 2 - 0.5            # recorded
    print(y)                         # one kernel runs

`docs/lazy.md` says when to use this instead of `smelt.compile`, and what makes recorded operators run.
"""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from smelt.ir.graph import GraphCompiler
    from smelt.lazy.block import LazyBlock
    from smelt.lazy.owner import LazyOwner
    from smelt.lazy.timeline import LazyExplanation

NAME = "lazy"

_make_compiler: "Callable[[], GraphCompiler] | None" = None
_chips: "dict[str, Callable[[GraphCompiler], LazyOwner]]" = {}  # by the name of their device
_owner: "LazyOwner | None" = None


def use_compiler(make: "Callable[[], GraphCompiler]") -> None:
    """What makes the compiler of recorded graphs; `smelt.api` says it."""
    global _make_compiler
    _make_compiler = make


def offer_chip(name: str, make: "Callable[[GraphCompiler], LazyOwner]") -> None:
    """A chip whose own device can record; `smelt.chips` says it."""
    _chips[name] = make


def enable(on: str | None = None, *, background: bool | None = None) -> "torch.device":
    """Make the device `"lazy"`, whose operators are recorded and run on the device `on`; returns it.

    `on`: "cpu" (the default) or "cuda". With the name of a registered chip, the device of the chip records, and there
    is no device `"lazy"`.
    `background`: True (the default) runs a new graph operator by operator while it is compiled, False waits for the
    compilation. May be called again with the same `on`. It cannot be undone: PyTorch has one device of this kind in a
    process.
    """
    global _owner
    from smelt.base.errors import SmeltError
    from smelt.device.host_library import HOST
    from smelt.lazy.enabling import make_owner
    from smelt.lazy.real_device import real_device

    if _owner is None and on in _chips:
        assert _make_compiler is not None, "smelt itself was not imported"
        _owner = _chips[on](_make_compiler())
    is_same = _owner is not None and (on is None or on == _owner.recorder.device_type)
    real = _owner.real if _owner is not None and is_same else real_device(on or HOST)
    # What blocks on a GPU have taken is refused where it is asked for.
    if _owner is None or _owner.recorder.device_type not in (NAME, *_chips):
        assert _make_compiler is not None, "smelt itself was not imported"
        _owner = make_owner(NAME, real, _make_compiler())
    elif _owner.real.device != real.device:
        raise SmeltError(
            "SM070", f"lazy tensors run on {_owner.real.device} in this process, and cannot run on {real.device} too"
        )
    if background is not None:
        _owner.runs.background = background
    return _owner.recorder.device


def _enabled() -> "LazyOwner":
    if _owner is None:
        enable()
    assert _owner is not None
    return _owner


def tensor(data: Any, **options: Any) -> "torch.Tensor":
    """A lazy tensor of `data`, with the options of `torch.tensor` (`dtype`, `requires_grad`)."""
    import torch

    lazy_tensor: torch.Tensor = torch.tensor(data, device=_enabled().recorder.device, **options)
    return lazy_tensor


def step() -> None:
    """Run the recorded operators. Call it at the end of an iteration of a loop that reads no values."""
    owner = _enabled()
    owner.settle("smelt.lazy.step()")
    owner.end_round()


def forget() -> None:
    """Run what was recorded, and drop all compiled programs (for `smelt.reset`)."""
    if _owner is not None:
        _owner.forget()


def explain() -> "LazyExplanation":
    """The runs so far with reasons and lines, the operators that fell back to PyTorch, and the number that wait."""
    return _enabled().explain()


def _owner_of_blocks(on: str | None) -> "LazyOwner":
    """Who records for blocks; on a GPU without the device `"lazy"`, beside which its tensors would have no backward."""
    global _owner
    if _owner is not None and on is None:
        return _owner
    from smelt.device.host_library import on_host
    from smelt.dispatch.device import UNNAMED
    from smelt.lazy.enabling import make_owner
    from smelt.lazy.real_device import real_device

    if _owner is None and on is not None:
        real = real_device(on)
        if not on_host(real.device):
            assert _make_compiler is not None, "smelt itself was not imported"
            _owner = make_owner(UNNAMED, real, _make_compiler())
    if _owner is None or (on is not None and real_device(on).device != _owner.real.device):
        enable(on)
    return _enabled()


class LazyFunctions(ModuleType):
    """This module, as `smelt.lazy`: `smelt.lazy.enable()`, and `with smelt.lazy():`."""

    if TYPE_CHECKING:  # what type checkers see of it
        enable = staticmethod(enable)
        tensor = staticmethod(tensor)
        step = staticmethod(step)
        explain = staticmethod(explain)
        forget = staticmethod(forget)
        use_compiler = staticmethod(use_compiler)
        _owner: "LazyOwner | None"
        _make_compiler: "Callable[[], GraphCompiler] | None"

    def __call__(self, on: str | None = None) -> "LazyBlock":
        """A context in which what happens to tensors of the device `on` is recorded, and run when a value is needed.

        On a GPU tensors keep their backward if the process has not called `enable()`, and it cannot call it later."""
        if on in _chips or (_owner is not None and _owner.recorder.device_type in _chips):
            from smelt.base.errors import SmeltError

            hint = "smelt.lazy.enable(on=...) has a chip's device record"
            raise SmeltError("SM070", "there are no blocks on chips", hint=hint)
        from smelt.lazy.block import LazyBlock

        return LazyBlock(_owner_of_blocks(on))


sys.modules[__name__].__class__ = LazyFunctions
