"""From a call to its result: the engine, capture of one frame, and running plans that stop at breaks."""
