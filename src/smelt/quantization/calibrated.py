"""Rounds weights so that the outputs of a layer change little on sample inputs, column by column (GPTQ).

    H = Σ x xᵀ of the layer's inputs   →   each column is rounded, and its error is spread over the columns that follow

The error of a column, relative to the inverse of H, is subtracted from later columns in proportion to how they
correlate with it.
"""

import torch
from torch import Tensor

from smelt.quantization.rounding import Grid, grid_of

_BLOCK = 128  # columns whose errors are applied to the rest at once
_DAMPING = 0.01  # of the mean of the diagonal


def rounded_with_inputs(
    weight: Tensor, moments: Tensor, bits: int, group: int, scale_dtype: torch.dtype
) -> tuple[Tensor, Grid]:
    """Integers of a matrix as floats, and the grids of its groups. `moments`: the sum of x xᵀ over inputs of a row."""
    work, importance = weight.float().clone(), moments.diagonal().clone()
    unused = importance == 0
    work[:, unused] = 0
    inverse = _inverse_factor(moments, unused)
    rows, columns = work.shape
    integers = torch.empty_like(work)
    scales, zeros = (torch.empty(rows, columns // group, device=work.device) for _ in range(2))
    grid = grid_of(work.view(rows, -1, group), bits, scale_dtype)
    for first in range(0, columns, _BLOCK):
        last = min(first + _BLOCK, columns)
        errors = torch.zeros(rows, last - first, device=work.device)
        for column in range(first, last):
            if column % group == 0:
                # Columns of this group beyond the block miss the errors of the block: only the grid depends on that.
                values = work[:, None, column : column + group]
                weights = importance[column : column + group].clamp_min(1e-12)
                grid = grid_of(values, bits, scale_dtype, weights)
                scales[:, column // group], zeros[:, column // group] = grid.scale[:, 0], grid.zero[:, 0]
            column_values = work[:, column]
            nearest = grid.rounded(column_values[:, None, None])
            integers[:, column] = nearest[:, 0, 0]
            error = (column_values - grid.values(nearest)[:, 0, 0]) / inverse[column, column]
            work[:, column:last] -= error[:, None] * inverse[column, column:last]
            errors[:, column - first] = error
        work[:, last:] -= errors @ inverse[first:last, last:]
    return integers, Grid(scales, zeros, grid.least, grid.most)


def _inverse_factor(moments: Tensor, unused: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse of the damped moments."""
    damped = moments.double().clone()
    diagonal = damped.diagonal()
    diagonal[unused] = 1
    diagonal += _DAMPING * diagonal.mean()
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    factor: Tensor = torch.linalg.cholesky(inverse, upper=True)
    return factor.to(moments.dtype)
