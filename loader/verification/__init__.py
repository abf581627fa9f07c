"""`windrow.verify`: every stored chunk is read and checked."""
