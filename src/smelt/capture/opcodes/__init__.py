"""What each bytecode instruction does to the virtual frame."""
