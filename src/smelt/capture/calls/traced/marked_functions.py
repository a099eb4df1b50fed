"""Functions marked by `torch.compiler.allow_in_graph`: called once on fake tensors, operators recorded.

    einx.subtract("j, i -> i j", a, b)      reshape · reshape · sub      nodes of the graph; its Python runs at capture

The mark says that such a function does nothing but compute tensors, whatever Python it takes for that: it is not
interpreted, and nothing that it reads is guarded, as `torch.compile` has it. What goes wrong inside breaks the graph at
the call, which Python then makes.
"""

from smelt.capture.calls.traced.recorder import Recorder, real_of
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.capture.model.breaks import Unsupported
from smelt.capture.model.values import Object, Value, describe


def call_traced(interp: Interpreter, function: Object, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What a marked function yields of values."""
    real = interp.externals.guard_identity(function)
    recorder = Recorder(interp)
    reals = [real_of(interp, value) for value in args]
    named = {name: real_of(interp, value) for name, value in kwargs.items()}
    try:
        with recorder:
            result = real(*reals, **named)
    except Exception as error:
        stop = recorder.stop or Unsupported("B002", f"{describe(function)}, which raised {type(error).__name__}")
        raise stop.bare() from None
    if recorder.stop is not None:
        raise recorder.stop.bare()
    return recorder.value(result)
