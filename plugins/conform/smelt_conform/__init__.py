"""`smelt conform NAME`: does a chip do what `smelt.device.Chip` says, and what does it lack?

    chip's name ── processes: a process that registers it ──► run_checks ──► outcomes ──► scorecard, page, JSON

The checks are data: `levels` lists them in the order in which a new chip meets them. A check that hangs or
ends the process fails alone; the next one is run by a new process."""
