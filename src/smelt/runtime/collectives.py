"""How to tell whether a graph has started a collective: each process group counts its own.

    before = collectives.started(); run(); collectives.started_since(before)   →   True: nothing may run again
"""

import sys
from typing import Any

from smelt.base.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Collectives:
    """The collectives of one graph. Where it `waits_for_earlier` ones, the counts do not tell when it has: a second
    wait for the same collective returns at once, with numbers that are not reduced."""

    waits_for_earlier: bool = False

    def started(self) -> tuple[int, ...] | None:
        """How many collectives each process group has started; None if nobody counts them."""
        module: Any = sys.modules.get("torch.distributed.distributed_c10d")
        if self.waits_for_earlier or module is None:
            return None
        try:
            return tuple(group._get_sequence_number_for_group() for group in module._world.pg_map)
        except (AttributeError, RuntimeError):  # a backend without numbers
            return None

    def started_since(self, before: tuple[int, ...] | None) -> bool:
        """Whether a collective may have started since there were `before`."""
        return before is None or self.started() != before
