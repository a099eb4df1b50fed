"""The flat program: one table of integers that `_native.Runner` runs, written, read back and printed."""
