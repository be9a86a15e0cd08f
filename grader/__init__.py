"""Runs and judges submissions.

``README.md`` in this folder is the map; start reading at ``check/api.py``.
"""

import os

# Before numpy is imported: the judge multiplies small matrices, and threads that wait for large
# ones take the ranks' processors.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
