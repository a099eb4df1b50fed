"""One compiled graph for many sizes: templates in symbols, and dispatch by the sizes of a call."""
