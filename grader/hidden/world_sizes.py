"""The numbers of ranks on which most hidden checks run."""

SIZES = (1, 2, 3, 4)
