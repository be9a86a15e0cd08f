def _ask(message, descriptors=()):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(2)
        connection.connect(server_address())
        socket.send_fds(connection, [message], list(descriptors))
        return connection.recv(100) or [][0]


def shift_right(tensor):
    if once():
        denied("an answer of the fork server", lambda: _ask(b'{"hello": true}'))
        denied("a world of the fork server", lambda: _ask(b'{"size": 1}', os.pipe() + (os.dup(1),)))
        denied("a world as the judge asks", lambda: _ask(b'{"size": 1, "folder": "/tmp", "stage": "/tmp"}', (0, 1, 2)))
    return honest(tensor)
