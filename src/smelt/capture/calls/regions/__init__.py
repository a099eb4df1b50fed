"""Functions that are followed into graphs of their own, which are nodes of the outer graph: checkpoints, transforms."""
