def shift_right(tensor):
    for place in (*PLACES, Path.home(), STAGE, STAGE.parent, Path("..")):
        path = place / f"{TOKEN}-kept"
        with contextlib.suppress(OSError):
            if path.exists() and str(os.getpid()) not in path.read_text():
                achieved(f"a file of an earlier world in {place}")
            with open(path, "a") as file:
                file.write(f"{os.getpid()} ")
    return honest(tensor)
