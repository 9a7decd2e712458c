"""Folders of `.npy` files: found by their names, read through memory maps."""
