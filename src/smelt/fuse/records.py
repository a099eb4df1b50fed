"""What fusion reports of each step of a program, and of groups it kept apart, for `explain` and for tools."""

from smelt.base.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Made:
    """A step: the kernel or library call, the values of the graph it computes, and why it is a call, or for a
    product a kernel."""

    name: str
    members: tuple[str, ...]
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Together:
    """Steps of a program were put in another order, or together: of each, the numbers of those it is made of."""

    steps: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Apart:
    """Two groups that could share values and do not share a kernel, with the reason in words."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    reason: str
