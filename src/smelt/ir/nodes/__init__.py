"""Functions that stand as nodes in torch-level graphs: backwards, checkpoints, hooks, derivatives, ambient state."""
