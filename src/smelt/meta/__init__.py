"""What operators yield, do and cost, without running them."""
