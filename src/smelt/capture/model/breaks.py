"""Why a graph ended early: one row per reason, with what happened in plain words and a way out.

raise Unsupported("B002", "print")   →   B002: call of print, which only Python can run  (hint: …)
"""

from typing import Any

REASONS: dict[str, tuple[str, str]] = {
    "B001": ("smelt.graph_break() was called", "remove the call to capture across it"),
    "B002": (
        "call of {}, which only Python can run",
        "move the call out of the compiled function, or after its tensor work",
    ),
    "B003": ("branch on a value that is only known by running: {}", "use torch.where, or decide on Python values"),
    "B004": ("{} needs the data of a tensor", "keep the value as a tensor, or read it after the compiled function"),
    "B005": (
        "write that only Python can do: {}",
        "write to a plain attribute or container, or return the new value instead",
    ),
    "B006": ("{} is a tensor subclass with its own rules", "unwrap it to a plain tensor before the compiled function"),
    "B007": (
        "attribute {} cannot be read without running Python",
        "read it before the compiled function and pass it in",
    ),
    "B008": ("operator {} on these operands", "compute it outside the compiled function"),
    "B009": ("iteration over {}", "iterate over a list, tuple, dict or range"),
    "B010": ("the function is marked smelt.disable: {}", "remove the mark to capture it"),
    "B011": (
        "{} raised while it was traced",
        "see the error that follows; if none does, the operator has no meta kernel",
    ),
    "B012": ("Python instruction {}", "rewrite the statement, or move it out of the compiled function"),
    "B013": ("context manager {}", "enter it outside the compiled function"),
    "B014": ("the answer depends on object identity: {}", "compare values instead"),
    "B015": ("{} changes what autograd knows of a tensor", "do it outside the compiled function"),
    "B016": ("the program is too long to unroll: {}", "shorten the loop, or compile its body"),
    "B017": ("key or value of a kind not followed: {}", "use plain Python values or tensors"),
    "B018": ("unbound variable {}", "see the error that follows"),
    "B019": ("an exception is raised here: {}", "see the error that follows"),
    "B021": (
        "{} of a tensor made in inference mode, outside of it",
        "clone it first, or use torch.no_grad in place of torch.inference_mode",
    ),
    "B022": (
        "a torch.autograd.Function that cannot be captured whole: {}",
        "hand what backward needs over in ctx, and leave effects and grad modes out of forward and backward",
    ),
    "B023": (
        "a loop goes on from where an earlier break left it",
        "mend the break inside the loop, and this one goes with it",
    ),
    "B024": (
        "torch.utils.checkpoint of what cannot be captured whole: {}",
        "checkpoint a function without effects, with use_reentrant=False and plain options",
    ),
    "B025": (
        "{} transforms a function of tensors while it runs",
        "use torch.autograd.grad or batched operators in its place, or transform outside the compiled function",
    ),
    "B026": (
        "a backward {}",
        "compute what it starts from in the same function, or set smelt.config.compiled_autograd = True",
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


class Raised(Unsupported):
    """Python raises an exception here: if the captured code handles it, capture goes on there, else Python raises it.

    `error` is a value (`Failure`, or an exception from outside) or a real exception that capture met on known values.
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


class SkipFrame(Exception):
    """The state cannot be captured at all; Python runs it from where it stands. Carries the reason."""
