"""Brings a grading's results to platforms other than Gradescope: see GUIDE.md in this folder.

The modules named after formats turn the results document (``reports.results_json``) into text, and
do nothing else. ``__main__`` is what containers run. ``packing`` writes ``dist/platforms``.
"""
