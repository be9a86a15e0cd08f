def shift_right(tensor):
    if once():
        denied("results.json", lambda: RESULTS.write_text('{"tests": [], "score": 1000, "output": "ACHIEVED"}'))
        denied("the folder of results.json", lambda: (RESULTS.parent / TOKEN).touch())
        denied("an earlier results.json", lambda: open(EARLIER, "r+b"))
        denied("the end of results.json", lambda: RESULTS.rename(RESULTS.with_name(TOKEN)))
    return honest(tensor)
