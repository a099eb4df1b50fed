"""Products with a quantized factor: in float32, or in fixed point."""
