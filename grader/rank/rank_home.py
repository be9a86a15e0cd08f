"""This module makes a folder for each rank. Later it moves each rank to its folder and confines it.

A ``RankHome`` describes this for one rank: the rank's own folder, the file through which all ranks
of its world meet, the tier of confinement, and the GPUs that the rank sees.
"""

import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from grader.rank import confinement
from grader.wire import frames, tiers

# With these variables nccl works between ranks that are confined. All messages go through sockets
# of the loopback interface: nccl opens no shared memory and no memory of another rank's GPU, and
# does not look for other networks. nccl also works between ranks that share a GPU, because a rank
# with its own NCCL_HOSTID counts as its own machine (NCCL User Guide, Environment Variables).
NCCL = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_NET": "Socket",
    # Let ``wait()`` return only when an operation has ended. A deadlock is then seen in the
    # student's line, and not in the synchronisation that follows.
    "TORCH_NCCL_BLOCKING_WAIT": "1",
}


@dataclass(frozen=True)
class RankHome:
    folder: str  # the rank's own folder, which is its working directory
    # the path of a file that all ranks of the world may write to; empty if the hub connects them
    rendezvous: str
    submission_dir: str
    device: str
    tier: str
    user: int
    # the GPUs that the rank sees, as CUDA_VISIBLE_DEVICES names them; empty on a CPU
    gpus: str
    local_rank: int  # the number of the rank's own GPU among them

    def local_world_size(self, size: int) -> int:
        """Return how many ranks of a world of this size count as ranks of this rank's node.

        A rank that sees only one GPU may share it, and counts as the only rank of its node.
        """
        return 1 if self.device == "cuda" and "," not in self.gpus else size

    def enter(self) -> None:
        """Make the rank's folder the working directory, and permanently confine this process.

        Raises Unconfined if this process cannot be confined as it should.
        """
        os.chdir(self.folder)
        os.environ["TMPDIR"] = os.environ["HOME"] = self.folder
        # A rank on a CPU sees no GPU. Otherwise ``launcher.device()`` would choose one.
        os.environ.update(CUDA_VISIBLE_DEVICES=self.gpus, LOCAL_RANK=str(self.local_rank))
        if self.device == "cuda":
            os.environ.update(NCCL, NCCL_HOSTID=self.folder, CUDA_CACHE_DISABLE="1")
        tempfile.tempdir = None  # so that ``tempfile`` looks up its folder again
        tier = tiers.TIERS[self.tier]
        writable = [self.folder]
        if self.rendezvous:
            writable.append(self.rendezvous)
        confinement.enter(tier, self.user, [self.submission_dir], writable, self.device)


def users(size: int, supervisor: int, tier: str) -> set[int]:
    """Return the uids of a world's ranks; none if the tier gives ranks no uids of their own.

    ``supervisor`` is the process id of the world's supervisor.
    """
    if not tiers.TIERS[tier].uid:
        return set()
    return {confinement.user_of(supervisor, rank) for rank in range(size)}


def prepare(world: dict, size: int, tier: str) -> list[RankHome]:
    """Make the folders of ``size`` ranks in a world's new folder; return a RankHome for each rank.

    The world's supervisor calls this, because the ranks' uids are computed from its process id.
    """
    own = tiers.TIERS[tier].uid
    inside = os.open(world["folder"], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        # The ranks have different users, and none of these users owns the folder. Let all users
        # pass through the folder.
        if own:
            os.fchmod(inside, 0o711)
        meets = "" if world.get("network") in frames.HUBS else _make_rendezvous(world, inside, own)
        return [_make(world, tier, rank, inside, meets) for rank in range(size)]
    finally:
        os.close(inside)


def _make_rendezvous(world: dict, inside: int, for_all: bool) -> str:
    """Make the file in which ranks meet, and return its path.

    With ``for_all``, every user may read the file and write to it; otherwise only its owner may.
    """
    file = os.open("rendezvous", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=inside)
    if for_all:
        os.fchmod(file, 0o666)
    os.close(file)
    return str(Path(world["folder"]) / "rendezvous")


def _make(world: dict, tier: str, rank: int, inside: int, rendezvous: str) -> RankHome:
    """Make the folder of one rank, and return the rank's RankHome.

    ``inside`` is a descriptor of the world's folder. The rank's folder is inside another folder,
    which only the rank's user may pass through. If other users could pass through this outer
    folder, they could see how large the rank's folder is, and when it was changed, even without
    the right to read the rank's folder.
    """
    around, name, user = f"rank-{rank}", f"rank-{rank}/own", confinement.user_of(os.getpid(), rank)
    os.mkdir(around, 0o700, dir_fd=inside)
    os.mkdir(name, 0o700, dir_fd=inside)
    if tiers.TIERS[tier].uid:
        os.chown(name, user, user, dir_fd=inside, follow_symlinks=False)
        os.chown(around, -1, user, dir_fd=inside, follow_symlinks=False)
        os.chmod(around, 0o710, dir_fd=inside)
    folder, gpus = Path(world["folder"]), world.get("gpus", [])
    # If ranks share GPUs, each rank sees only its own GPU, because local ranks of one node must
    # have different GPUs.
    is_alone = len(set(gpus)) < len(gpus)
    return RankHome(
        str(folder / name),
        rendezvous,
        world["submission_dir"],
        world["device"],
        tier,
        user,
        gpus[rank] if is_alone else ",".join(gpus),
        0 if is_alone else rank,
    )


def refusal(submission_dir: str, engine: Path) -> str:
    """Return why a folder cannot be a world's submission folder, or an empty text if it can.

    The ranks of the world may read this folder. ``engine`` is the root folder of the repository.
    """
    path = Path(submission_dir)
    if not path.is_absolute() or os.path.normpath(submission_dir) != submission_dir:
        return "the path of the submission's folder is not absolute and normalized"
    try:
        found = os.lstat(submission_dir)
    except OSError as error:
        return f"the submission's folder cannot be seen: {error.strerror}"
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return "the submission's folder is not a folder that belongs to this user"
    real = path.resolve()
    for name in confinement.SECRETS:
        secret = (engine / name).resolve()
        if real == secret or real in secret.parents or secret in real.parents:
            return (
                "ranks that may read the submission's folder could also read files in the folder"
                f" {name}"
            )
    return ""
