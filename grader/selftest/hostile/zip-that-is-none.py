"""Is a zip in name alone.

threat: 18
junk: PK, but no zip
control: none
zero: 1.6
note: neither a directory nor a zip
"""
