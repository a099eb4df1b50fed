"""Text generation as one loop of compiled programs: `smelt.generate`. Start with `loop.py`."""
