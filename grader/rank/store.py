"""This is torch's key-value store, which ranks use when they make a group. The hub keeps the data.

This code runs beside student code.
"""

from datetime import timedelta

import torch.distributed as dist

from grader.rank.work import Network
from grader.wire import frames


class HubStore(dist.Store):
    """A store for the requests that torch makes while it makes a process group.

    In these requests, a rank counts, records that it has arrived, and reads the records of other
    ranks. The hub refuses all other uses, because ranks have to communicate through operations.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        network.store = self  # keeps it alive, because torch keeps only its C++ half

    def _ask(self, do: str, keys: list[str], **more: str | int) -> dict:
        number = self.network.ask(frames.STORE, {"do": do, "keys": list(keys), **more})
        return self.network.link.take(number).meta

    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", [key], value=_text(value))

    def get(self, key: str) -> bytes:
        return self._ask("get", [key])["value"].encode("latin-1")

    def add(self, key: str, amount: int) -> int:
        return int(self._ask("add", [key], amount=amount)["value"])

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._ask("wait", keys)

    def check(self, keys: list[str]) -> bool:
        return bool(self._ask("check", keys)["found"])

    def set_timeout(self, timeout: timedelta) -> None:
        """Do nothing, because the judge ends a world that waits for ever."""


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else bytes(value).decode("latin-1")
