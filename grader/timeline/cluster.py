"""Models a cluster: reads its file, and computes the times of computing and communicating on it.

The cluster does not have to exist. The module only computes, and does not need torch.

Sources of the times: [P] Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters
of workstations, 2009. [T] Thakur, Rabenseifner and Gropp, Optimization of collective communication
operations in MPICH, 2005. [N] NVIDIA's nccl-tests, doc/PERFORMANCE.md. [H] Hensgen, Finkel and
Manber, Two algorithms for barrier synchronization, 1988. [N2] NVIDIA/nccl-tests, issue 160: the bus
bandwidth of a ring over nodes is the sum of the bandwidths of a node's ports.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from configparser import ConfigParser
from configparser import Error as IniError
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from grader.diagnosis.finding import short
from grader.wire.tiers import MAX_RANKS

# The number of rounds that a collective makes on a ring of n ranks. A round has n − 1 steps.
RING_PHASES = {
    "all_reduce": 2,
    "all_gather": 1,
    "reduce_scatter": 1,
    "gather": 1,
    "scatter": 1,
    "all_to_all": 1,
}
# In these collectives, a rank sends or receives n − 1 messages, one after the other.
IN_TURN = "gather", "scatter", "all_to_all"
WITHIN, BETWEEN = "within a node", "between nodes"  # kinds of links, and sections of the file


class BadCluster(ValueError):
    """Raised if a file does not describe a valid cluster. The message says why, in one sentence."""


@dataclass(frozen=True)
class Link:
    """A link: ``latency`` (α) in seconds, ``bandwidth`` (β) in bytes per second and direction."""

    latency: float
    bandwidth: float

    def seconds(self, size: float) -> float:
        """Return the seconds of a message of ``size`` bytes: α + S/β [Hockney, 1994]."""
        return self.latency + size / self.bandwidth


@dataclass(frozen=True)
class Cluster:
    """A modelled cluster. Ranks 0 … ``ranks`` − 1 are its devices.

    Each ``devices_per_node`` consecutive devices make a node. The student's program runs on this
    machine with small tensors ("the run"). On the cluster, each dimension of a tensor is ``scale``
    times as long as in the run. Each entry has ``bytes_per_number`` bytes. If ``bytes_per_number``
    is None, an entry has as many bytes as in the run.
    """

    ranks: int
    devices_per_node: int
    flop_per_second: float  # of one device
    within: Link
    between: Link
    scale: float = 1.0
    bytes_per_number: float | None = None
    name: str = "the cluster"
    ports_per_node: int | None = None  # to the network; None means one for each device

    def computing(self, operations: float) -> float:
        """Return the seconds that a device takes for floating-point operations of the run.

        ``operations`` is the number of these operations in the run.
        """
        return operations * self.scale**3 / self.flop_per_second

    def size(self, elements: int, itemsize: float) -> float:
        """Return the size of a tensor on this cluster, in bytes.

        In the run, the tensor has ``elements`` entries of ``itemsize`` bytes each.
        """
        return elements * (self.bytes_per_number or itemsize) * self.scale**2

    def kind(self, one: int, other: int) -> str:
        """Return the kind of link between two ranks: ``WITHIN`` or ``BETWEEN``."""
        return WITHIN if one // self.devices_per_node == other // self.devices_per_node else BETWEEN

    def link(self, kind: str) -> Link:
        return self.within if kind == WITHIN else self.between

    def message(self, source: int, target: int, size: float) -> float:
        """Return the seconds that the transfer of a message of ``size`` bytes takes."""
        return self.link(self.kind(source, target)).seconds(size)

    def collective(self, kind: str, group: Sequence[int], whole: float) -> float:
        """Return the seconds of a collective, from the moment at which its last rank joins.

        ``whole`` is S, the bytes of the whole array: see ``whole_of``. n is the number of ranks.
        The ranks form a ring in the order of their numbers. A step of the ring takes as long as its
        slowest link. Between nodes, nccl makes k rings, and each ring carries S/k. The rings leave
        a node through different ports, so the bandwidth between nodes is k·β [N2]. k is the smaller
        of two numbers: the ports of a node, and the fewest ranks of the group on any of its nodes.
        In a gather, a scatter and an all-to-all, a rank sends through its own port. For a single
        rank, the result is 0. Raise ValueError for a kind that is not in this table:

        all-reduce                        2(n−1)(α + S/(nβ))    [P]
        all-gather, reduce-scatter         (n−1)(α + S/(nβ))    [T]
        gather, scatter, all-to-all        (n−1)(α + S/(nβ))    n−1 messages in turn [N]
        broadcast, reduce                  (n−1)α + S/β         along the ring, in small pieces [N]
        barrier                            ⌈log₂ n⌉ α           [H]
        """
        n = len(group)
        if n == 1:
            return 0.0
        if kind == "barrier":
            return math.ceil(math.log2(n)) * self._step(group, 0.0)
        rings = 1 if kind in IN_TURN else self._rings(group)
        if kind in ("broadcast", "reduce"):
            return (n - 2) * self._step(group, 0.0) + self._step(group, whole, rings)
        if kind not in RING_PHASES:
            raise ValueError(f"no time is known for {kind}")
        return RING_PHASES[kind] * (n - 1) * self._step(group, whole / n, rings)

    def _rings(self, group: Iterable[int]) -> int:
        """Return the number of rings of a group. On each node, every ring has its own port."""
        ranks_of_node = Counter(rank // self.devices_per_node for rank in group)
        return min(*ranks_of_node.values(), self.ports_per_node or self.devices_per_node)

    def _step(self, group: Iterable[int], size: float, rings: int = 1) -> float:
        """Return the seconds of a message of ``size`` bytes on the slowest link of the ring.

        Between nodes each of ``rings`` rings carries an equal part of the message.
        """
        # The link from the last rank back to the first rank is left out. If this link connects two
        # nodes, another link of the ring also connects two nodes.
        ring = sorted(group)
        kinds = {self.kind(one, other) for one, other in zip(ring, ring[1:])}
        sizes = {WITHIN: size, BETWEEN: size / rings}
        return max(self.link(kind).seconds(sizes[kind]) for kind in kinds)

    def _ports(self) -> str:
        ports = self.ports_per_node or self.devices_per_node
        return f"{ports} port{'s' * (ports > 1)}"

    def assumptions(self) -> list[str]:
        """Return sentences about the assumptions behind the times on this cluster."""
        nodes = math.ceil(self.ranks / self.devices_per_node)
        number = (
            f"with {self.bytes_per_number:g} byte{'s' * (self.bytes_per_number != 1)} per number"
            if self.bytes_per_number
            else "with as many bytes per number as in the run"
        )
        return [
            (
                f"Assumed: {self.name}, {self.ranks} devices, {self.devices_per_node} in a node"
                f" ({nodes} node{'s' * (nodes > 1)}). Each device computes"
                f" {self.flop_per_second:.3g} floating-point operations per second."
            ),
            (
                f"Assumed: a message of S bytes takes α + S/β, within a node {_link(self.within)},"
                f" between nodes {_link(self.between)}. A message is ready when its send and its"
                " receive have both been issued. For each kind of link a rank has one outgoing and"
                " one incoming channel. A channel carries one ready message at a time, the earliest"
                " first."
            ),
            (
                "Assumed: a collective begins when its last rank has joined and the earlier"
                " collectives of its group are over. It takes the time of a ring over its ranks,"
                " with the slowest link: all-reduce 2(n−1)(α + S/(nβ)); all-gather, reduce-scatter,"
                " gather, scatter and all-to-all (n−1)(α + S/(nβ)); broadcast and reduce"
                f" (n−1)α + S/β; barrier ⌈log₂ n⌉α. A node has {self._ports()} to the network."
                " If k ranks of each node take part, a collective uses up to k ports of a node at"
                " the same time. So between nodes its bandwidth is up to k·β. In gather, scatter"
                " and all-to-all, each message uses one port."
            ),
            (
                f"Assumed: each dimension of a tensor is {self.scale:g} times as long as in the run"
                f" ({number}). So a tensor has {plain(self.scale**2)} times as many entries, and a"
                f" product takes {plain(self.scale**3)} times as many floating-point operations."
            ),
            (
                "Not modelled: memory and its limits, operations other than products of matrices,"
                " waits for a future (get_future, all_reduce_coalesced), the start of kernels,"
                " products that are too small to fill a device, collectives"
                " that share a link with messages or with a collective of another group,"
                " congestion, noise."
            ),
        ]


def whole_of(kind: str, sizes: Iterable[float], n: int) -> float:
    """Return S of a collective of n ranks: the number of bytes of its whole array.

    ``sizes`` holds the size in bytes of each rank's input. If a rank has no input, ``sizes`` holds
    the size of its output.
    """
    return max(sizes) * (n if kind in ("all_gather", "gather") else 1)


def plain(value: float) -> str:
    """Return a number as text: whole if it is at least 1000, else with 3 significant digits."""
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def _link(link: Link) -> str:
    return f"α = {plain(link.latency * 1e6)} µs and β = {plain(link.bandwidth / 1e9)} GB/s"


# ——— the file of a cluster


def _number(low: float, high: float, *, above: bool = False) -> Callable[[str], float]:
    """Return a function that converts text to a number from ``low`` to ``high``.

    If ``above`` is True, ``low`` itself is not allowed. The function raises ValueError if the text
    is not a number in this range.
    """

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high or above and value == low:  # NaN is in no range
            begin = f"a number {'above' if above else 'from'} {low:g}"
            if high == math.inf:
                raise ValueError(begin)
            raise ValueError(f"{begin} {'up ' * above}to {high:g}")
        return value

    return read


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 7 and low <= int(text) <= high):
            raise ValueError(f"a whole number from {low} to {high}")
        return int(text)

    return read


def _name(text: str) -> str:
    if not text or not text.isprintable() or len(text) > 100:
        raise ValueError("a line of text, of at most 100 characters")
    return text


LINK: dict[str, Callable] = {
    "latency_seconds": _number(0, 10),
    "bytes_per_second": _number(0, math.inf, above=True),
}
KEYS: dict[str, dict[str, Callable]] = {
    "cluster": {
        "name": _name,
        "ranks": _whole(2, MAX_RANKS),
        "devices_per_node": _whole(1, 1024),
        "flop_per_second": _number(0, 1e21, above=True),
        "scale": _number(0, 1e6, above=True),
        "bytes_per_number": _number(0, 16, above=True),
        "ports_per_node": _whole(1, 1024),
    },
    WITHIN: LINK,
    BETWEEN: LINK,
}
MAY_LACK = "name", "bytes_per_number", "ports_per_node"


def read(path: Path) -> Cluster:
    """Return the cluster that a file describes. Raise BadCluster if the file has a mistake."""
    found = {
        section: _section(path.name, section, values) for section, values in _parsed(path).items()
    }
    for section, keys in KEYS.items():
        if section not in found:
            raise BadCluster(f"{path.name} has no section [{section}]")
        if missing := [key for key in keys if key not in found[section] and key not in MAY_LACK]:
            raise BadCluster(f"{path.name}: [{section}] has no {missing[0]}")
    within, between = (Link(*(found[kind][key] for key in LINK)) for kind in (WITHIN, BETWEEN))
    return Cluster(within=within, between=between, **found["cluster"])


def _parsed(path: Path) -> dict[str, dict[str, str]]:
    ini = ConfigParser(interpolation=None, inline_comment_prefixes=("#", ";"), default_section="")
    try:
        ini.read_string(path.read_bytes().decode("utf-8-sig"), path.name)
    except OSError as error:
        raise BadCluster(
            f"{path} cannot be read ({error.strerror or type(error).__name__})"
        ) from None
    except (IniError, UnicodeDecodeError) as error:
        raise BadCluster(
            f"{path.name} is not a file of sections, keys and values:"
            f" {short(' '.join(str(error).split()))}"
        ) from None
    return {section: dict(ini.items(section)) for section in ini.sections()}


def _section(file: str, section: str, values: dict[str, str]) -> dict[str, Any]:
    if section not in KEYS:
        raise BadCluster(
            f"{file}: [{short(section)}] is not a section; there are"
            f" {', '.join(f'[{name}]' for name in KEYS)}"
        )
    found = {}
    for key, text in values.items():
        if key not in KEYS[section]:
            near = get_close_matches(key, KEYS[section], n=1)
            raise BadCluster(
                f"{file}: [{section}] has no key {short(key)}"
                + (f"; did you mean {near[0]}?" if near else "")
            )
        try:
            found[key] = KEYS[section][key](text.strip())
        except ValueError as error:
            raise BadCluster(
                f"{file}: {key} in [{section}] must be {error}, not {short(repr(text))}"
            ) from None
    return found
