"""What writes out grids that are not rows of their own: points, tiles, rows one after the other, two loops as one."""
