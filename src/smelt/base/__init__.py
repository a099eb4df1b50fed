"""What every other part may lean on: options, coded errors, events, sizes."""
