"""Products of matrices as libraries compute them."""
