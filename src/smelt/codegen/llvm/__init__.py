"""LLVM: printing the loop form as IR, compiling it, linking the objects."""
