"""The same training along the dimensions of a mesh."""
