"""Numerical checks of sharded layers against their serial twins, from YAML."""
