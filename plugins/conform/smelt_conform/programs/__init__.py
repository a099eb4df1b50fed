"""Functions and models that the checks compile, written as users write them."""
