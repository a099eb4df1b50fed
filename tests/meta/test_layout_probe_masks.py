"""Trial runs of derivatives whose first result is not asked for: PyTorch's own code may end the process there."""

import textwrap

import pytest

from tests.processes import run


@pytest.mark.parametrize("dynamic", [None, True])
def test_group_norm_of_channels_last_images_that_need_no_gradient(dynamic: bool | None) -> None:
    """Eager runs the forward; only its backward ends the process."""
    program = f"""
        import torch, smelt
        norm = torch.nn.GroupNorm(2, 8)
        compiled = smelt.compile(lambda x: norm(x) * 2, dynamic={dynamic})
        for size in (4, 5):
            x = torch.randn(1, 8, size, size).contiguous(memory_format=torch.channels_last)
            torch.testing.assert_close(compiled(x), norm(x) * 2)
        print("done")
    """
    done = run(textwrap.dedent(program))
    assert done.stdout == "done\n", done.stderr
