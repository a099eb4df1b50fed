"""A campaign of programs that compute nothing, without torch: one fails, and one ends its process."""

import os
import sys
from typing import Any

from tests.campaigns import Campaign

FAILS, ENDS = 12, 14


def examine(seed: int) -> dict[str, Any]:
    if seed == ENDS:
        os._exit(3)
    return {"calls": 1, "failure": "it is wrong" if seed == FAILS else None}


CAMPAIGN = Campaign("tests.tooling.counting", examine, lambda seed: f"program({seed})", ("calls",))

if __name__ == "__main__":
    sys.exit(CAMPAIGN.main())
