"""Makes the folders of a world's ranks, and refuses unsafe folders of submissions."""

import os
import stat
from pathlib import Path

from grader.rank.rank_home import RankHome
from grader.supervisor import rank_users
from grader.wire import frames, tiers
from grader.wire.world_request import WorldRequest

SECRETS = ("grader", "solutions", ".git")  # folders of this repository that no rank may read


def prepare(request: WorldRequest, size: int, tier: str) -> list[RankHome]:
    """Make the folders of ``size`` ranks in a world's new folder; return a RankHome for each rank.

    The world's supervisor calls this, because the ranks' uids are computed from its process id.
    """
    own = tiers.TIERS[tier].uid
    inside = os.open(request.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        # The ranks have different users, and none of these users owns the folder. Let all users
        # pass through the folder.
        if own:
            os.fchmod(inside, 0o711)
        meets = "" if request.network in frames.HUBS else _make_rendezvous(request, inside, own)
        return [_make(request, tier, rank, inside, meets) for rank in range(size)]
    finally:
        os.close(inside)


def _make_rendezvous(request: WorldRequest, inside: int, for_all: bool) -> str:
    """Make the file through which ranks find each other, and return its path.

    If ``for_all`` is True, all users may read and write the file. Otherwise only its owner may.
    """
    file = os.open("rendezvous", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=inside)
    if for_all:
        os.fchmod(file, 0o666)
    os.close(file)
    return str(Path(request.folder) / "rendezvous")


def _make(request: WorldRequest, tier: str, rank: int, inside: int, rendezvous: str) -> RankHome:
    """Make the folder of one rank, and return the rank's RankHome.

    ``inside`` is a descriptor of the world's folder. The rank's folder is inside another folder,
    which only the rank's user may pass through. If other users could pass through this outer
    folder, they could see the size of the rank's folder, and when it was changed. They need no
    right to read the folder for that.
    """
    around, name, user = f"rank-{rank}", f"rank-{rank}/own", rank_users.user_of(os.getpid(), rank)
    os.mkdir(around, 0o700, dir_fd=inside)
    os.mkdir(name, 0o700, dir_fd=inside)
    if tiers.TIERS[tier].uid:
        os.chown(name, user, user, dir_fd=inside, follow_symlinks=False)
        os.chown(around, -1, user, dir_fd=inside, follow_symlinks=False)
        os.chmod(around, 0o710, dir_fd=inside)
    folder, gpus = Path(request.folder), request.gpus
    # If ranks share GPUs, each rank sees only its own GPU, because local ranks of one node must
    # have different GPUs.
    share_gpus = len(set(gpus)) < len(gpus)
    return RankHome(
        str(folder / name),
        rendezvous,
        request.submission_dir,
        request.device,
        tier,
        user,
        gpus[rank] if share_gpus else ",".join(gpus),
        0 if share_gpus else rank,
    )


def refusal(submission_dir: str, engine: Path) -> str:
    """Return why a folder cannot be a world's submission folder, or an empty text if it can.

    The ranks of the world may read this folder. ``engine`` is the root folder of the repository.
    """
    path = Path(submission_dir)
    if not path.is_absolute() or os.path.normpath(submission_dir) != submission_dir:
        return "the path of the submission's folder must be absolute and normalized"
    try:
        found = os.lstat(submission_dir)
    except OSError as error:
        return f"the submission's folder cannot be seen: {error.strerror}"
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return "the submission's folder is not a folder that belongs to this user"
    real = path.resolve()
    for name in SECRETS:
        secret = (engine / name).resolve()
        if real == secret or real in secret.parents or secret in real.parents:
            return (
                "ranks that may read the submission's folder could also read files in the folder"
                f" {name}"
            )
    return ""
