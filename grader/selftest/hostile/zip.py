"""Is a zip, in a folder of its own, with what macOS adds.

threat: 18
zipped: yes
repeated: __MACOSX/homework/._collectives.py = "junk"
full: 1.6
"""


# --- file: homework/collectives.py
def shift_right(tensor):
    return honest(tensor)
