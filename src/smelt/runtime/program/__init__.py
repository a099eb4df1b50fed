"""Running a kernel program: machine code in memory, steps in order, times."""
