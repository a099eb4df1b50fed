"""Writers of grids with a special shape: pointwise, transposing, many rows per block, online softmax."""
