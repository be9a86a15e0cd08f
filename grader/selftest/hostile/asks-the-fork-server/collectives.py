def shift_right(tensor):
    if once():
        denied("an answer of the fork server", lambda: ask(server_address(), b'{"hello": true}'))
        denied("a world of the fork server", lambda: ask(server_address(), b'{"size": 1}', os.pipe() + (os.dup(1),)))
        denied(
            "a world as the judge asks",
            lambda: ask(server_address(), b'{"size": 1, "folder": "/tmp", "stage": "/tmp"}', (0, 1, 2)),
        )
    return honest(tensor)
