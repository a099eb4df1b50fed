"""Measures products, convolutions and attention on this machine, by kernels and by PyTorch's library.

    calibrate(seconds=10)  →  {1: HostCosts(…), 16: HostCosts(…)}      by how many threads they are for

points.py    what is measured: a kernel and a library call for each point
measure.py   how long they take, alternately
fit.py       the constants of the cost model that these times give
"""
