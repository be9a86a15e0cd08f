Evil = type("\x1b[2J\x1b]0;title\x07\u202e" + "E" * 100_000, (Exception,), {})


def shift_right(tensor):
    raise Evil("\x1b[2J\x1b[32m100 of 100\r\x08\x00\u202egnorw\u2028\x85")
