"""Where a rank lives: a folder of its own, the file in which all ranks of its world meet, and what it may do."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from grader.worlds import confinement


@dataclass(frozen=True)
class Place:
    folder: str  # the rank's own, and its working directory
    rendezvous: str
    stage: str
    device: str
    tier: str
    user: int

    def enter(self) -> None:
        """Move in, for good. Raises Unconfined where this process cannot be confined as it should."""
        os.chdir(self.folder)
        os.environ["TMPDIR"] = os.environ["HOME"] = self.folder
        tempfile.tempdir = None  # decided anew
        tier = confinement.TIERS[self.tier]
        confinement.enter(tier, self.user, [self.stage], [self.folder, self.rendezvous], self.device)


def prepare(world: dict, tier: str) -> list[Place]:
    """Make the folders of a world's ranks. Called by its keeper, whose process number the ranks' users follow from."""
    own = confinement.TIERS[tier].uid
    rendezvous = Path(world["folder"]) / "rendezvous"
    rendezvous.touch()
    if own:  # strangers to each other, and to whoever owns the folder
        rendezvous.parent.chmod(0o711)
        rendezvous.chmod(0o666)
    places = []
    for rank in range(world["size"]):
        folder, user = rendezvous.with_name(f"rank-{rank}"), confinement.user_of(os.getpid(), rank)
        folder.mkdir(mode=0o700)
        if own:
            os.chown(folder, user, user)
        places.append(Place(str(folder), str(rendezvous), world["stage"], world["device"], tier, user))
    return places
