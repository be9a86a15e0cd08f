"""This module moves a rank to its own folder, and confines it.

A ``RankHome`` holds the settings of one rank, such as its folder, its tier of confinement and the
GPUs that it sees. The world's supervisor makes each ``RankHome``: see ``supervisor.rank_folders``.
"""

import os
import tempfile
from dataclasses import dataclass

from grader.rank import confinement
from grader.wire import tiers

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
    local_rank: int  # the number of the rank's own GPU among ``gpus``

    def local_world_size(self, size: int) -> int:
        """Return how many of the world's ``size`` ranks count as ranks on this rank's node.

        A rank that sees only one GPU may share it, and counts as the only rank of its node.
        """
        return 1 if self.device == "cuda" and "," not in self.gpus else size

    def enter(self) -> None:
        """Make the rank's folder the working directory, and permanently confine this process.

        Raises Unconfined if a protection of the rank's tier does not work here.
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
