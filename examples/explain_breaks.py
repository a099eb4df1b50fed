"""Find and fix a graph break: `smelt.explain` for a training step that prints, and for one that returns its values.

    python examples/explain_breaks.py

Each break comes with its line and a hint; the fixed model applies both hints and is one graph.
"""

import torch
from torch import nn

import smelt
from smelt.explain.explanation import Explanation


class Clipped(nn.Module):
    """A layer that looks at its data twice: once to tell the user, once to decide."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        print(f"largest {y.abs().max():.2f}")  # only Python can print: the graph ends here
        if y.abs().max() > 1:  # a tensor decides: the graph ends here again
            y = y / y.abs().max()
        return torch.relu(y)


class Fixed(Clipped):
    """The same, with the decision as tensor work and the number returned for the caller to print."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        y = self.inner(x)
        largest = y.abs().max()
        y = torch.where(largest > 1, y / largest, y)
        return torch.relu(y), largest


def report(title: str, explanation: Explanation) -> None:
    """The counts, and each break with its place and its way out."""
    print(f"{title}: graphs {explanation.graph_count}, breaks {explanation.graph_break_count}")
    for record in explanation.break_reasons:
        print(f"    {record.reason}\n        at {record.stack[-1]}\n        {record.hint}")


def main() -> None:
    torch.manual_seed(0)
    model = Clipped()
    fixed = Fixed()
    fixed.load_state_dict(model.state_dict())
    x = torch.randn(8, 16)

    report("before", smelt.explain(model)(x))
    report("after", smelt.explain(fixed)(x))

    compiled = smelt.compile(fixed, fullgraph=True)  # from now on a break would be an error
    output, largest = compiled(x)
    print(f"largest {largest:.2f}")
    torch.testing.assert_close(output, model(x))
    print("same output, one graph")


if __name__ == "__main__":
    main()
