"""Features of Python and PyTorch that programs use: captured whole, and as plain Python has it.

What still breaks the graph is listed by name, so that the page on limits stays true.
"""

import pytest

import smelt
from tests.capture.features import containers, language, library, tensors
from tests.capture.features.running import PROGRAMS, Featured, hold_against_python

assert containers and language and library and tensors  # they enter their programs

BREAKS = frozenset(
    [
        "generator_returned",
        "generator_not_begun",
        "generator_expression_returned",
        "generator_in_object",
        "cached_inside",
        "traceback_text",
        "exception_group",
        "weak_reference",
        "weak_reference_outside",
        "weak_made_of_outside",
        "weak_tensor",
        "weak_table",
        "weak_proxy",
        "hook_scales",
        "hook_looks",
        "hook_removed",
        "hook_of_two",
        "hook_closure",
        "hook_inside_backward",
        "tensor_alpha",
        "tensor_value",
        "tensor_fill",
        "tensor_alpha_computed",
        "tensor_alpha_outside",
        "grad_of_intermediate",
        "retained_grad",
        "data_of_intermediate",
        "grad_of_plain",
        "leafness",
        "cond_on_shape",
        "cond_on_data",
        "cond_closure",
        "cond_tuple",
        "looped",
        "looped_on_data",
        "mapped",
        "cond_gradient",
        "apply_keyword",
        "apply_all_keywords",
        "apply_by_setup",
        "apply_wrong",
        "lazy_sequence",
        "lazy_convolution",
        "lazy_trained",
        "numpy_and_back",
        "numpy_functions",
        "numpy_arguments",
        "numpy_scalars",
        "numpy_returned",
        "numpy_written",
    ]
)
"""Programs that break the graph, and why: see docs/limits.md."""


@pytest.mark.parametrize("featured", PROGRAMS, ids=lambda featured: featured.name)
def test_is_whole(featured: Featured) -> None:
    if featured.program.__name__ not in BREAKS:
        hold_against_python(featured)
        return
    with pytest.raises(smelt.GraphBreakError):
        hold_against_python(featured)
