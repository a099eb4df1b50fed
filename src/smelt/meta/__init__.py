"""Layer 3: what operators yield, do and cost, without running them."""
