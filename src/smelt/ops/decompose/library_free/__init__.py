"""Operators that only libraries compute otherwise, by reads and writes at computed places."""
