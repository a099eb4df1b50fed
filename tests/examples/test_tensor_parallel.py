"""The example of tensor parallelism trains in two processes, in one graph each."""

import re
import socket

import pytest

from tests.processes import ROOT, start

_SCRIPT = """
import os, runpy, sys
os.environ.update(RANK=sys.argv[1], WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT=sys.argv[2],
                  GLOO_SOCKET_IFNAME="lo")
torch.set_num_threads(1)
runpy.run_path(sys.argv[3], run_name="__main__")
"""


@pytest.mark.slow
def test_trains_in_one_graph() -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    example = str(ROOT / "examples" / "tensor_parallel.py")
    ranks = [start(_SCRIPT, arguments=[str(rank), port, example], warns=False) for rank in range(2)]
    ended = [rank.done(240) for rank in ranks]
    assert all(rank.returncode == 0 for rank in ended), ended
    losses = re.search(r"loss (\S+) -> (\S+)", ended[0].stdout)
    assert losses is not None and float(losses[2]) < 0.5 * float(losses[1]), ended
    assert "graphs 1, breaks 0, in eager 0" in ended[0].stdout, ended
