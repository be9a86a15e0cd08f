r"""Is a zip of 64 kB that unpacks to 64 MB.

threat: 18
zipped: yes
repeated: collectives.py = "\n" * 67108864
control: none
zero: 1.6
says: larger than 1 MiB
"""
