"""Ranks on this machine, started once and kept: start, hand work, watch, restart, stop."""
