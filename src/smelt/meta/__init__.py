"""What operators return, do and cost, without running them."""
