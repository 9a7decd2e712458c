"""Time axes: decoded, selected and cut into trajectories."""
