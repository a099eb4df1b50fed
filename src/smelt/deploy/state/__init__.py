"""State of an artifact: what a call changes outside, and the registers that keep it between calls."""
