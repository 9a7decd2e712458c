"""A pytest plugin for distributed tests: one world of ranks for thousands of them."""
