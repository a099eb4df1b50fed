"""Many random training programs on lazy tensors: `python -m tests.lazy.generated.training_campaign --start 41`."""

import sys
from typing import Any

from tests.campaigns import Campaign
from tests.lazy.generated.training import STEPS, failure_of


def script(seed: int) -> str:
    return f"from tests.lazy.generated.training import failure_of\n\nprint(failure_of({seed}))\n"


def examine(seed: int) -> dict[str, Any]:
    """Program `seed` on lazy tensors."""
    try:
        failure = failure_of(seed)
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    return {"steps": STEPS, "failure": failure and f"program {seed}: {failure}\n\n{script(seed)}"}


CAMPAIGN = Campaign("tests.lazy.generated.training_campaign", examine, script, ("steps",), count=2_000)


if __name__ == "__main__":
    sys.exit(CAMPAIGN.main())
