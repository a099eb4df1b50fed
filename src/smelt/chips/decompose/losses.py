"""Losses that compare all classes with each other, and that of sequences without alignment."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from smelt.chips.decompose.table import computes
from smelt.device.host_library import HOST

Tensor = torch.Tensor
aten = torch.ops.aten

_MEAN = 1


def _as_rows(x: Tensor) -> Tensor:
    return x if x.dim() == 2 else x.reshape(1, -1)


def _share(grad: Tensor, rows: int, reduction: int) -> Tensor:
    """A gradient for each row, to be multiplied with."""
    found = grad.reshape(-1, 1)
    return found / rows if reduction == _MEAN else found


@computes(aten.multi_margin_loss_backward.default)
def multi_margin_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, p: Any, margin: Any, weight: Tensor | None = None, reduction: int = _MEAN
) -> Tensor:
    rows, classes = _as_rows(x), target.reshape(-1, 1)
    over = float(margin) - rows.gather(1, classes) + rows
    slope = (over > 0.0).to(x.dtype) if p == 1 else over.clamp(min=0.0) * 2.0
    slope = slope.scatter(1, classes, 0.0)
    if weight is not None:
        slope = slope * weight[classes.reshape(-1)].unsqueeze(1)
    slope = slope.scatter(1, classes, -slope.sum(1, keepdim=True)) / rows.shape[1]
    return (slope * _share(grad, rows.shape[0], reduction)).view(x.shape)


@computes(aten.multilabel_margin_loss_backward.default)
def multilabel_margin_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, reduction: int, is_target: Tensor
) -> Tensor:
    rows, classes, mine = _as_rows(x), _as_rows(target), _as_rows(is_target) != 0
    wanted = (classes >= 0).to(torch.int64).cumprod(1) != 0  # up to the first that is none
    safe = torch.where(wanted, classes, 0)
    over = 1.0 - rows.gather(1, safe).unsqueeze(2) + rows.unsqueeze(1)
    counts = ((over > 0.0) & wanted.unsqueeze(2) & ~mine.unsqueeze(1)).to(x.dtype)
    slope = counts.sum(1).scatter_add(1, safe, -counts.sum(2)) / rows.shape[1]
    return (slope * _share(grad, rows.shape[0], reduction)).view(x.shape)


# Sequences: Graves's recursions over the labels with blanks between them.


class _Alignment:
    """What both directions need: labels with blanks between, and which of them may follow the one before the last."""

    def __init__(
        self, probabilities: Tensor, targets: Tensor, inputs: Sequence[int], lengths: Sequence[int], blank: int
    ) -> None:
        device, batch = probabilities.device, len(inputs)
        self.steps, longest = probabilities.shape[0], max(lengths)
        starts = [sum(lengths[:n]) for n in range(batch)] if targets.dim() == 1 else [0] * batch
        place = torch.arange(2 * longest + 1, device=device)
        at = (place - 1) // 2
        tables = [torch.tensor(list(each), device=HOST).to(device).unsqueeze(1) for each in (inputs, lengths, starts)]
        self.inputs, self.lengths, first = tables
        self.is_label = (place % 2 == 1) & (at < self.lengths)
        self.inside = place < 2 * self.lengths + 1
        safe = torch.where(self.is_label, at.clamp(min=0) + first, 0)
        if targets.dim() == 1:
            found = targets.to(torch.int64)[safe.clamp(max=max(targets.numel() - 1, 0))] if targets.numel() else safe
        else:
            found = targets.to(torch.int64).gather(1, safe) if longest else safe
        self.labels = torch.where(self.is_label, found, blank)
        before = torch.cat([torch.full_like(self.labels[:, :2], blank), self.labels[:, :-2]], 1)
        self.skips = self.is_label & (self.labels != before) & (place >= 2)
        # For each step, sequence and place.
        self.logs = probabilities.gather(2, self.labels.unsqueeze(0).expand(self.steps, -1, -1))


def _moved(x: Tensor, by: int) -> Tensor:
    """Later by so many places; what comes in is nothing."""
    count = min(by, x.shape[1])
    return torch.cat([torch.full_like(x[:, :count], -math.inf), x[:, : x.shape[1] - count]], 1)


def _total(*logs: Tensor) -> Tensor:
    return torch.stack(logs).logsumexp(0)


@computes(aten._ctc_loss.default)
def ctc_loss(
    probabilities: Tensor,
    targets: Tensor,
    inputs: Sequence[int],
    lengths: Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    align = _Alignment(probabilities, targets, inputs, lengths, blank)
    place = torch.arange(align.labels.shape[1], device=probabilities.device)
    alpha = torch.where((place < 2) & align.inside, align.logs[0], -math.inf)
    found = [alpha]
    for step in range(1, align.steps):
        skipped = torch.where(align.skips, _moved(alpha, 2), -math.inf)
        alpha = _total(alpha, _moved(alpha, 1), skipped) + align.logs[step]
        alpha = torch.where(align.inside, alpha, -math.inf)
        found.append(alpha)
    alphas = torch.stack(found, 1)
    last = (align.inputs - 1).clamp(min=0).unsqueeze(2).expand(-1, 1, alphas.shape[2])
    ends = alphas.gather(1, last).squeeze(1)
    final = 2 * align.lengths
    one, other = ends.gather(1, final), ends.gather(1, (final - 1).clamp(min=0))
    other = torch.where(final > 0, other, -math.inf)
    return -_total(one, other).squeeze(1), alphas


@computes(aten._ctc_loss.Tensor)
def ctc_loss_of_tensors(
    probabilities: Tensor, targets: Tensor, inputs: Tensor, lengths: Tensor, blank: int = 0, zero_infinity: bool = False
) -> Any:
    return ctc_loss(probabilities, targets, inputs.tolist(), lengths.tolist(), blank, zero_infinity)


@computes(aten._ctc_loss_backward.default)
def ctc_loss_backward(
    grad: Tensor,
    probabilities: Tensor,
    targets: Tensor,
    inputs: Sequence[int],
    lengths: Sequence[int],
    loss: Tensor,
    alphas: Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Tensor:
    align = _Alignment(probabilities, targets, inputs, lengths, blank)
    place = torch.arange(align.labels.shape[1], device=probabilities.device)
    final = 2 * align.lengths
    is_end = ((place == final) | (place == final - 1)) & align.inside
    may_skip = torch.cat([align.skips[:, 2:], torch.zeros_like(align.skips[:, :2])], 1)
    beta = torch.full_like(align.logs[0], -math.inf)
    sums = [beta] * align.steps
    for step in reversed(range(align.steps)):
        flipped = beta.flip(1)
        one, two = _moved(flipped, 1).flip(1), _moved(flipped, 2).flip(1)
        running = _total(beta, one, torch.where(may_skip, two, -math.inf)) + align.logs[step]
        begins = torch.where(is_end, align.logs[step], -math.inf)
        is_last = align.inputs == step + 1
        beta = torch.where(is_last, begins, torch.where((align.inputs > step + 1) & align.inside, running, -math.inf))
        sums[step] = beta
    # How likely each place is at each step, by both directions; its own probability counts once.
    both = torch.stack(sums) + alphas.permute(1, 0, 2)
    likely = torch.where(both == -math.inf, 0.0, (both - align.logs + loss.view(1, -1, 1)).exp())
    shape = probabilities.shape
    labels = align.labels.unsqueeze(0).expand(shape[0], -1, -1)
    used = torch.zeros(shape, dtype=probabilities.dtype, device=probabilities.device).scatter_add(2, labels, likely)
    found = (probabilities.exp() - used) * grad.view(1, -1, 1)
    step_numbers = torch.arange(shape[0], device=probabilities.device).view(-1, 1, 1)
    found = torch.where(step_numbers < align.inputs.view(1, -1, 1), found, 0.0)
    if zero_infinity:
        found = torch.where(loss.view(1, -1, 1) == math.inf, 0.0, found)
    return found


@computes(aten._ctc_loss_backward.Tensor)
def ctc_loss_backward_of_tensors(
    grad: Tensor, probabilities: Tensor, targets: Tensor, inputs: Tensor, lengths: Tensor, *rest: Any
) -> Tensor:
    return ctc_loss_backward(grad, probabilities, targets, inputs.tolist(), lengths.tolist(), *rest)
