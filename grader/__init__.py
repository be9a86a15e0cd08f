"""Runs and judges submissions.

``README.md`` in this folder is the map; start reading at ``check/api.py``.
"""

import os

# OPENBLAS_NUM_THREADS must be set before numpy is imported. The judge multiplies only small
# matrices, and idle threads of numpy would take processors from the ranks.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
