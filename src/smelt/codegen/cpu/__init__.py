"""The CPU: schedules, loop nests, threads, and the rewrites that make them fast."""
