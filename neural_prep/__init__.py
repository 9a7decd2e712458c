"""Training statistics and distributed checks for machine-learning weather prediction.

PYTEST_DONT_REWRITE: ranks of the pytest plugin have imported this before pytest looks at it.
"""

__version__ = "0.1.0"
