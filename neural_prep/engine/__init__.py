"""The statistics job: Lightning, ranks, progress and what happens when something fails."""
