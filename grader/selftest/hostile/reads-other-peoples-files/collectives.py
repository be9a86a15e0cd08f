def shift_right(tensor):
    if once():
        denied("somebody's homework", lambda: NEIGHBOUR.read_text())
        denied("somebody's results", lambda: EARLIER.read_text())
        denied("its own results", lambda: RESULTS.read_text())
        denied("passwords", lambda: open("/etc/shadow").read())
        denied("what runs are going on", lambda: os.listdir(STAGE.parent.parent))
    return honest(tensor)
