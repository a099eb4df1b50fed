"""The symbolic interpreter and what it knows of Python's data model: attributes, operators, iterators, exceptions."""
