"""Keeps pytest, and its search for doctests, away from what are scripts."""

collect_ignore_glob = ["*.py"]
