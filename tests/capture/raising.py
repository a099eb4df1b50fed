"""Functions that raise for some tensors, out of pytest's sight, which would write their `assert` anew."""

import torch


def asserted(x: torch.Tensor, log: list[str], w: torch.Tensor) -> torch.Tensor:
    y = x * 2
    w.add_(1)
    log.append("before")
    assert (y > 0).all(), f"sum is {y.sum().item()}"
    w.mul_(3)
    return y + torch.rand(3)


def raised(x: torch.Tensor, log: list[str], w: torch.Tensor) -> torch.Tensor:
    if x.sum() < 0 or x.isnan().any():
        log.append("seen")
        raise ValueError("bad", x.shape)
    w.sub_(1)
    return x + 1


def caught(x: torch.Tensor, log: list[str], w: torch.Tensor) -> torch.Tensor:
    try:
        if not x.sum() > 0:
            raise ArithmeticError(f"{x.sum():.1f}")
        return x + 1
    except ArithmeticError as error:
        log.append(str(error))
        return x - 1


def inner(x: torch.Tensor) -> torch.Tensor:
    if x.min() < 0:
        raise KeyError("negative")
    return x.sqrt()


def inlined(x: torch.Tensor, log: list[str], w: torch.Tensor) -> torch.Tensor:
    log.append("outer")
    try:
        return inner(x * 2) + 1
    finally:
        log.append("done")
