"""From whatever was handed in to a fresh folder that holds the assignment's files and nothing else."""
