"""The mode that capture runs operators under: notes their side effects and data-dependent sizes.

with EffectRecorder(tape): torch.rand(3)    →    a fake tensor, and the tape draws random numbers on the CPU
"""

from collections.abc import Mapping, Sequence
from typing import Any

from smelt.capture.tape.tape import Tape
from smelt.meta.data_sizes import sized_by_data, sized_by_library
from smelt.meta.devices import result_device
from smelt.meta.effects import draws_random, is_collective, quietly_written, raises, waits
from smelt.meta.fake_tensor import OURS, FakeMode, FakeTensorError, by_others


class EffectRecorder(FakeMode):  # type: ignore[no-untyped-call]
    """The mode that capture runs operators under: notes what they do besides yielding fake tensors."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape = tape

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        answer = by_others(func, types, args, kwargs)
        if answer is not OURS:
            return answer
        if draws_random(func, args, kwargs or {}):
            self._tape.effects.draws_on.add(str(result_device(func, args, kwargs or {})))
        if is_collective(func):
            self._tape.effects.communicate(waits(func))
        elif raises(func, args):
            self._tape.effects.may_raise()
        for tensor in quietly_written(func, args):
            self._tape.memory.add_untracked_write(tensor)
        sizes = self._tape.data_sizes
        if sizes is None or not sizes.shape_env.quiet:
            return super().__torch_dispatch__(func, types, args, kwargs)
        result = sized_by_data(func, args, kwargs or {}, sizes.new_size)
        if result is not NotImplemented:
            return result
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        except (RuntimeError, NotImplementedError, FakeTensorError):
            result = sized_by_library(func, args, kwargs or {}, sizes.new_size)
            if result is NotImplemented:
                raise
            return result
