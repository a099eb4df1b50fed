"""Recorded paths: as graphs, in symbols, as programs that are compiled while others run, and operator by operator."""
