"""Exported functions: one file that runs, and trains, without Python; writing it, loading it, calling it."""
