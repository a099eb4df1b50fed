"""What schedules write the loop form with: the builder, scalar operations, math functions, reductions, random bits."""
