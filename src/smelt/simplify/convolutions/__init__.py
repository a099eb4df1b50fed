"""Passes over convolutions: the layout of images, and biases."""
