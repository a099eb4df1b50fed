"""Captures that outlive the process: written to disk, named, read back and verified."""
