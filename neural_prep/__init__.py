"""Training statistics and distributed checks for machine-learning weather prediction."""

__version__ = "0.1.0"
