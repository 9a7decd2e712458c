"""Training stores: one module for each layout, behind one protocol."""
