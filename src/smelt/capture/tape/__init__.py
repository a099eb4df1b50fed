"""The graph under construction, and what autograd and random numbers mean for it."""
