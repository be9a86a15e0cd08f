"""Everything that runs and judges a submission. Start reading at ``face.py``: it is all that a check knows of."""
