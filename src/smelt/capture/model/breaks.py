"""Why a graph ended early: one entry per reason, with what happened and a hint.

raise Unsupported("B002", "print")   →   B002: call of print, which only Python can run  (hint: …)
"""

from typing import Any

REASONS: dict[str, tuple[str, str]] = {
    "B001": ("smelt.graph_break() was called", "remove the call to capture across it"),
    "B002": (
        "call of {}, which only Python can run",
        "move the call out of the compiled function, or to its end",
    ),
    "B003": ("data-dependent branch: {}", "use torch.where, or branch on Python values"),
    "B004": ("{} needs the data of a tensor", "keep the value as a tensor, or read it after the compiled function"),
    "B005": (
        "mutation that cannot be captured: {}",
        "mutate a plain attribute or container, or return the new value instead",
    ),
    "B006": (
        "{} is an unsupported tensor subclass or layout",
        "unwrap it to a plain tensor before the compiled function",
    ),
    "B007": (
        "attribute {} cannot be read without running Python",
        "read it before the compiled function and pass it in",
    ),
    "B008": ("unsupported operands: {}", "compute it outside the compiled function"),
    "B009": ("unsupported iteration over {}", "iterate over a list, tuple, dict or range"),
    "B010": ("the function is marked smelt.disable: {}", "remove the mark to capture it"),
    "B011": (
        "{} raised while it was traced",
        "see the error that follows; if none does, the operator has no meta kernel",
    ),
    "B012": ("unsupported Python instruction {}", "rewrite the statement, or move it out of the compiled function"),
    "B013": ("unsupported context manager {}", "enter it outside the compiled function"),
    "B014": ("the answer depends on object identity: {}", "compare values instead"),
    "B015": ("{} changes a tensor's autograd metadata", "do it outside the compiled function"),
    "B016": ("the program is too long to unroll: {}", "shorten the loop, or compile its body"),
    "B017": ("unsupported type of key or value: {}", "use plain Python values or tensors"),
    "B018": ("unbound variable {}", "see the error that follows"),
    "B019": ("an exception is raised here: {}", "see the error that follows"),
    "B021": (
        "{} of an inference tensor outside inference mode",
        "clone it first, or use torch.no_grad in place of torch.inference_mode",
    ),
    "B022": (
        "a torch.autograd.Function that cannot be captured as a whole: {}",
        "pass what backward needs through ctx, and keep side effects and grad modes out of forward and backward",
    ),
    "B023": (
        "a loop continues after an earlier graph break inside it",
        "fix the break inside the loop, and this one goes away",
    ),
    "B024": (
        "torch.utils.checkpoint of a function that cannot be captured as a whole: {}",
        "checkpoint a function without side effects, with use_reentrant=False and plain options",
    ),
    "B025": (
        "{} is a function transform, applied inside the compiled function",
        "use torch.autograd.grad or batched operators in its place, or transform outside the compiled function",
    ),
    "B026": (
        "a backward {}",
        "compute what it starts from in the same function, or set smelt.config.compiled_autograd = True",
    ),
    "B027": (
        "{} cannot be part of one graph: after a collective nothing is run again",
        "move the collective, or the handler, out of the compiled function",
    ),
}

# A backward whose graph was made elsewhere is a graph of its own, which compiled autograd captures when it runs.
COMPILED_LATER = "B026"


class Unsupported(Exception):
    """Raised while one instruction is interpreted: it ends the graph before that instruction."""

    def __init__(self, code: str, detail: str = "") -> None:
        text, hint = REASONS[code]
        super().__init__(text.format(detail))
        self.code, self.detail = code, detail
        self.reason = text.format(detail)
        self.hint = hint

    def bare(self) -> "Unsupported":
        """Without its traceback and chain, whose frames hold on to the program's objects."""
        self.__context__ = self.__cause__ = None
        return self.with_traceback(None)


class NotFollowed(Unsupported):
    """A generator is not followed, as an earlier attempt ended inside of it: why that ended is the reason to tell.

    `is_droppable`: somebody could tell when it is dropped, by its handlers (`finally`, `with`), which run then.
    """

    def __init__(self, code: str, detail: str, *, is_droppable: bool) -> None:
        super().__init__(code, detail)
        self.is_droppable = is_droppable


class Raised(Unsupported):
    """Python raises an exception here: if the captured code handles it, capture goes on there, else Python raises it.

    `error` is a value (`ExceptionValue`, or an exception from outside) or a real exception raised on known values.
    """

    def __init__(self, error: Any, text: str, *, reraised: bool = False, code: str = "B019") -> None:
        super().__init__(code, text)
        self.error = error
        self.reraised = reraised  # re-raised: the frame is in the traceback already
        self.chained = reraised  # and it has its context
        self.places: list[Any] = []  # frames left so far, innermost first
        self.handled: Any = None  # what was being handled when it was raised
        self.cause: Any = None  # of `raise … from …`
        self.details: dict[str, Any] = {}  # attributes that C code gives a new exception
        self.named_class: type | None = None  # the class whose name is in its message

    def bare(self) -> "Raised":
        if isinstance(self.error, BaseException):
            self.error.__context__ = self.error.__cause__ = self.error.__traceback__ = None
        super().bare()
        return self

    @classmethod
    def of(cls, error: BaseException) -> "Raised":
        """For a real exception, as Python words it."""
        return cls(error, f"{type(error).__name__}: {error}")


class Materialize(Exception):
    """A lazy module is called for the first time: its parameters are made, by `function`, and capture begins again."""

    def __init__(self, function: Any, *args: Any) -> None:
        super().__init__()
        self.function, self.arguments = function, args


class SkipFrame(Exception):
    """The state cannot be captured at all; Python runs it from where it stands. Carries the reason."""
