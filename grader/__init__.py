"""Everything that runs and judges a submission. Start reading at ``face.py``: it is all that a check knows of."""

import os

# Before numpy is imported: the judge multiplies small matrices, and threads that wait for large ones take the ranks' processors.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
