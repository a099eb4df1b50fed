"""Compiled graphs on disk and in memory: keys, entries, and starting from them."""
