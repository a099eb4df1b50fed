"""`smelt conform NAME`: check whether a chip implements `smelt.device.Chip`, and list what is missing.

    command ──► processes: registers the chip in a new process ──► run_checks ──► outcomes ──► scorecard, page, JSON

The checks are data: `levels` lists them in the order in which a new chip needs them. A check that hangs or
ends the process fails alone; a new process runs the next one."""
