"""Many random products against float64: `make test-products`, or

    python -m tests.codegen.cpu.products.campaign --count 10000 --start 7 --jobs 2 --keep failures/

Each is run by every schedule that takes it, with several numbers of threads; then once more with sizes in symbols,
compiled once and run at several sizes.
"""

import sys
from typing import Any

import torch

from tests.campaigns import Campaign
from tests.codegen.cpu.products.running import failures, failures_in_symbols, told
from tests.codegen.quick_code import continue_quickly


def examine(seed: int) -> dict[str, Any]:
    """Product `seed` by all schedules."""
    schedules, wrong = 0, []
    for found in (failures, failures_in_symbols):
        try:
            taken, faults = found(seed)
        except Exception as error:
            taken, faults = 0, [f"{type(error).__name__}: {error}"]
        schedules, wrong = schedules + taken, wrong + [f"{found.__name__}: {each}" for each in faults]
    failure = f"product {seed}: {'; '.join(wrong)}\n\n{told(seed)}" if wrong else None
    return {"runs": schedules, "refused": int(not schedules and not wrong), "failure": failure}


def prepare() -> None:
    """Workers run side by side: PyTorch's own threads, one per core in each, would wait for one another."""
    torch.set_num_threads(1)
    continue_quickly()


CAMPAIGN = Campaign("tests.codegen.cpu.products.campaign", examine, told, ("runs", "refused"), prepare, 10_000)


if __name__ == "__main__":
    sys.exit(CAMPAIGN.main())
