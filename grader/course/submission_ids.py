"""Makes ids of submissions from names that students have chosen.

An id is the name of a folder. So it has only ASCII letters, digits, ``.``, ``_`` and ``-``.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable


def unique(names: Iterable[str]) -> list[str]:
    """Return a unique name for each of these names. The new names are safe for folders.

    If a name loses letters, a hash is added to its end. So its new name does not depend on the
    other submissions. If different names would become equal, each of them gets a hash, too. If a
    name occurs again, it gets a number.
    """
    names = list(names)
    originals: dict[str, set[str]] = {}
    for name in names:
        originals.setdefault(safe_name(name).lower(), set()).add(name)
    taken: set[str] = set()
    found = []
    for name in names:
        plain = safe_name(name)
        if len(originals[plain.lower()]) > 1 or _loses_letters(name):
            digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4)
            plain += f"-{digest.hexdigest()}"
        numbered, count = plain, 1
        while numbered.lower() in taken:  # some file systems ignore case
            count += 1
            numbered = f"{plain}-{count}"
        taken.add(numbered.lower())
        found.append(numbered)
    return found


def _loses_letters(name: str) -> bool:
    """Return whether ``safe_name`` leaves out letters or digits, such as Chinese ones."""
    spelled = unicodedata.normalize("NFKD", name)
    return any(c.isalnum() and not c.isascii() for c in spelled)


def safe_name(name: str) -> str:
    """Return a similar name that has only ASCII letters, digits, ``.``, ``_`` and ``-``."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9._]+", "-", plain).strip("-.")[:80] or "student"
