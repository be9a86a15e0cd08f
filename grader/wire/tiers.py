"""Defines the tiers of confinement, and the limits, of ranks that run student code.

    limits     rlimits, no new privileges, first to be killed when memory runs out   every Linux
    landlock   sees its own folder, submission, Python, system; writes to its own    Linux 5.13
    uid        a user of its own for every rank                                      root

The table shows each protection and the system or user that it needs. Each tier in ``TIERS`` has
the limits, and none, one or both of the other protections. The fork server uses a probe to find out
which tier works here: see ``supervisor.probe``. Nothing in this module is secret.
"""

import os
from dataclasses import dataclass

from grader.wire.os_support import LINUX

MAX_RANKS = 64  # in one world, and in one modelled cluster
# The most descriptors in one request for a world: three for each rank, and a socket. Linux has a
# limit of 253.
DESCRIPTORS = 3 * MAX_RANKS + 1

FILE_BYTES = 16 << 20  # of one file
FOLDER_BYTES = 64 << 20  # of all files of a world
# In these two dicts, the keys are the devices of ranks.
FILES_OPEN = {"cpu": 256, "cuda": 2048}  # in one process; a GPU's driver opens many
SIGNALS_QUEUED = 64  # signals that wait for delivery, to all processes of a user together
# processes and threads of a rank; honest ranks have four, and more with a GPU's driver and nccl
TASKS = {"cpu": 40, "cuda": 200}
MAX_PROCESSES_PER_RANK = 8  # the rank itself included


@dataclass(frozen=True)
class Tier:
    """The protections that a rank gets in addition to its limits."""

    uid: bool = False  # a user of its own
    landlock: bool = False
    # The rank may read all files that Landlock allows, whoever owns them. This is needed, for
    # example, if Python is installed in root's home.
    reader: bool = False

    @property
    def name(self) -> str:
        parts = ["a user for every rank"] * self.uid + ["Landlock"] * self.landlock
        return " and ".join(parts) or "nothing but limits"

    def gaps(
        self, abi: int, has_hub: bool, is_held: bool = False, has_network: bool = False
    ) -> list[str]:
        """Return the actions that student code can do in this tier but should not be able to do.

        ``abi`` is this kernel's version of Landlock. ``has_hub`` says whether the hub carries what
        ranks communicate. ``is_held`` says whether a control group limits the world's memory and
        threads, and ranks cannot leave this group. ``has_network`` says whether the ranks of a
        world on gloo have a network of their own.

        If a hostile submission of the selftest uses a gap, the header of its file names the gap
        after ``unless``, in the same words as here. The tests compare these words.
        """
        alone = self.landlock and not self.uid
        nothing = not self.landlock and not self.uid
        found = {
            (
                "read and change all that the grader's user can read and change, and signal the"
                " grader"
            ): nothing,
            "signal the grader": alone and abi < 6,
            "change limits and priorities of the grader's processes": alone,
            "change permissions, owners and times of the grader's files": alone,
            "see the command lines of other processes": not self.landlock,
            "leave files in /tmp and /dev/shm behind, and share them with other ranks": nothing,
            "share files in /tmp and /dev/shm with other ranks of its world": (
                self.uid and not self.landlock
            ),
            # One rank can set each name, size and time, and another rank can read it.
            (
                "see names, sizes and times of files that it may not read, and so send anything to"
                " another rank without a record of it"
            ): (self.reader or not self.uid),
            "send data to other ranks through abstract sockets, which have no file": (
                not self.landlock or abi < 6
            ),
            "leave System V semaphores and queues behind": not self.uid,
            (
                "take more memory than the limit of its world, between two measurements or in"
                " memory that belongs to no process"
            ): (not is_held),
            (
                "open connections to other machines, and to other gradings on this machine, in"
                " checks on gloo or on GPUs"
            ): (not has_network),
            # The following are ways to cheat, not to harm. Without a hub, the rank itself reports
            # what it communicated.
            "forge the record of what it communicated": not has_hub,
            "forge the record of what it communicated, in checks on gloo": has_hub,
            "forge the account of what it computed": True,
            # A limit leaves room for correct programs. So a wrong program may stay below the limit.
            (
                "hold more memory than a problem allows, if no check measures it, or if it stays"
                " below the limit of a check"
            ): True,
            (
                "forge its report of a call: when parts of it began, when it waited, and which"
                " operations it did not wait for"
            ): True,
            # The size of /proc/PID/fd is how many files a process has open. A rank can change it
            # thousands of times in a call.
            (
                "send another rank kilobytes in each call without a record of it, through facts"
                " that the system shows about processes, such as the number of open files"
            ): LINUX,
        }
        return [gap for gap, there in found.items() if there]


# The best tier comes first. If ``reader`` is True, only Landlock limits which files the rank can
# read. Landlock and the rank's user together confine everything else.
TIERS = {
    "uid+landlock": Tier(uid=True, landlock=True),
    "uid+landlock+reader": Tier(uid=True, landlock=True, reader=True),
    "landlock": Tier(landlock=True),
    "uid": Tier(uid=True),
    "none": Tier(),
}


def candidates() -> list[str]:
    """Return the names of the tiers that may work for this process, best first."""
    root = LINUX and os.geteuid() == 0
    return [
        name for name, tier in TIERS.items() if name == "none" or LINUX and (root or not tier.uid)
    ]
