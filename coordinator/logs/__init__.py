"""Log dirs and partitions as the coordinator holds them: who serves what, checkpoints, retention, files that are to go."""
