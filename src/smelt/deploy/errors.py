"""What cannot be exported, as errors that name the user's line and the way out."""

from smelt.base.errors import SmeltError


class ExportError(SmeltError):
    """Raised by `smelt.export` for what no artifact can hold."""

    def __init__(self, message: str, *, hint: str = "", where: str = "", code: str = "SM051") -> None:
        super().__init__(code, message, hint=hint, where=where)


class BreaksGraph(ExportError):
    """The function is not one graph."""


class DecidesByState(BreaksGraph):
    """Which way the function goes depends on a tensor that it changes."""
