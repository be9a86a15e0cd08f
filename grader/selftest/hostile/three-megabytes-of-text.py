r"""Is three megabytes long.

threat: 18
part: all
base: solutions
repeated: collectives.py = "# long\n" * 450000
zero: 1.6
says: larger than 1 MiB
"""
