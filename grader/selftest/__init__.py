"""Proof that the grader works: right, wrong and hostile submissions, and tests of every folder.

Not shipped.
"""

import os

from grader.course_file import FILE

# The grader's own tests and commands use the whole assignment and all defaults. They do not read
# course.toml, because an instructor may edit it. An empty file changes no default.
os.environ[FILE] = os.devnull
