"""Formats that results are written in: one module for each, found by its name."""
