"""The mathematics of exact statistics; knows no framework."""
