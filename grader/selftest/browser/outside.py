"""Plays the network: a proxy that notes connections, and closes them.

The DevTools protocol reports requests, but no connection that is opened before any request.
"""

import socket
import threading
from types import TracebackType
from urllib.parse import urlsplit

# Chromium itself asks these hosts for the time, for updates and for its settings. If a page asks
# them for something, the DevTools protocol reports that, too.
OF_CHROMIUM = ("google.com", "googleapis.com", "gvt1.com", "gstatic.com")
SECONDS = 0.5  # in which a request follows its connection


class Outside:
    """Listens on this machine, from the beginning of a ``with`` block to its end."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._noted: list[str] = []
        self._readers: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> "Outside":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # which ends the wait in ``accept``
        self._listener.close()
        self._thread.join()

    def noted(self) -> list[str]:
        """Return the first line of each request so far, and a text for other connections."""
        while self._readers:
            self._readers.pop().join()
        return self._noted

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            reader = threading.Thread(target=self._read, args=(connection,), daemon=True)
            reader.start()
            self._readers.append(reader)

    def _read(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(SECONDS)
            try:
                line = connection.recv(4096).partition(b"\r\n")[0].decode(errors="replace")
            except OSError:
                line = ""
        if not _is_of_chromium(line):
            self._noted.append(line or "a connection without a request")


def _is_of_chromium(line: str) -> bool:
    """Return whether a request, such as "CONNECT www.google.com:443 HTTP/1.1", is Chromium's own."""
    _, _, rest = line.partition(" ")
    address = rest.partition(" ")[0]
    host = urlsplit(address if "://" in address else f"//{address}").hostname or ""
    return any(host == own or host.endswith(f".{own}") for own in OF_CHROMIUM)
