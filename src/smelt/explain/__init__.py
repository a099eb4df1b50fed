"""Layer 5: what the compiler did, for people."""
