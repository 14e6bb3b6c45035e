"""Names of releases: a name that is not listed is that of a listed model with other words at its end."""

from __future__ import annotations

import re
from collections.abc import Iterable

_RELEASE = re.compile(r"-(instruct|chat|thinking|base|hf|it|\d{4})$")
"""Last word of a name that does not change the shape: how the model was tuned, and the date of a release."""


def listed_names(wanted: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return the names that a name in lower case may mean: itself, without words of a release, or as the
    beginning of others that continue with "-"; () for none."""
    names = tuple(known)
    while wanted not in names and _RELEASE.search(wanted):
        wanted = _RELEASE.sub("", wanted)
    if wanted in names:
        return (wanted,)
    return tuple(name for name in names if wanted and name.startswith(f"{wanted}-"))
