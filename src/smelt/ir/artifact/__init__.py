"""Artifacts: a function that was exported, as a state machine of programs, with its checks and its text."""
