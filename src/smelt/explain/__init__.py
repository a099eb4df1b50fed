"""What the compiler did, for people."""
