"""Tables: programs as records of 64-bit words, which Python writes and C runs where they lie (`csrc/executor`)."""
