"""What capture works on: values, where they came from, bytecode, states, reasons for breaks."""
