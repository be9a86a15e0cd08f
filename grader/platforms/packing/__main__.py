"""Pack the files for other platforms into dist/platforms.

    python -m grader.platforms.packing [--to FOLDER] [--image NAME]

``README.md`` in that folder says how to use the files. If an earlier run has written the folder,
the whole folder is replaced. Any other folder stays as it is, and the program exits with 2.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from grader.packaging.pack import CannotPack, Contents
from grader.packaging.visibility import ROOT
from grader.platforms.packing.contents import everything

PACKED_MARK = ".packed"  # only a folder with this file is ever replaced


def write(contents: Contents, target: Path) -> None:
    """Write the files into a new folder, which replaces ``target``.

    Raise CannotPack if ``target`` is a folder that no earlier run has written.
    """
    if target.exists() and not (target / PACKED_MARK).exists():
        raise CannotPack(f"{target} was not written by this command; use another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".packing-") as temporary:
        fresh, old = Path(temporary) / "fresh", Path(temporary) / "old"
        for name, data in (contents | {PACKED_MARK: b""}).items():
            path = fresh / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(0o755 if path.suffix == ".sh" else 0o644)
        if target.exists():
            target.rename(old)
        fresh.rename(target)
        shutil.rmtree(old, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m grader.platforms.packing", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("--to", type=Path, default=ROOT / "dist" / "platforms", metavar="FOLDER")
    parser.add_argument(
        "--image",
        default="you/lockstep-prairielearn",
        metavar="NAME",
        help="the image on Docker Hub that PrairieLearn pulls",
    )
    arguments = parser.parse_args()
    try:
        contents = everything(arguments.image)
        write(contents, arguments.to)
    except (CannotPack, OSError, ValueError) as error:
        print(f"cannot pack: {error}", file=sys.stderr)
        return 2
    print(f"{arguments.to}: {len(contents)} files; README.md there says how to use them")
    return 0


if __name__ == "__main__":
    sys.exit(main())
