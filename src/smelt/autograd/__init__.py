"""Ahead-of-time autograd: torch-level graph → pure forward and backward graphs, and a plan that joins them.

joint      the graph run on fake tensors, functionalized: forward, then the engine's backward, one joint graph
partition  what to save, what to recompute: two graphs
engine     a whole backward of autograd's graph, for compiled autograd
aot        the same by hand: `smelt.aot_function`
"""
