"""Layer 3: ahead-of-time autograd. Torch-level graph → pure forward and backward graphs, and a plan that joins them.

trace      run the graph on ghosts, writes removed, into one recorder
joint      forward, then the engine's backward: one joint graph
partition  what to save, what to compute again: two graphs
aot        the same by hand: `smelt.aot_function`
"""
