"""Zarr arrays: opened alike in both formats, cut into blocks and read in whole chunks."""
