"""What an adapter asks of its framework, before it imports it."""

from __future__ import annotations

import re
from importlib import metadata


def require(package: str, oldest: tuple[int, int], *, extra: str | None = None) -> None:
    """ImportError with the line to write if `package` is missing, or older than what the adapter was written for."""
    line = f"write pip install 'thinwire[{extra or package}]'"
    needed = ".".join(map(str, oldest))
    try:
        found = metadata.version(package)
    except metadata.PackageNotFoundError:
        raise ImportError(f"thinwire.integrations.{extra or package} needs {package} >= {needed}; {line}") from None
    numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
    if numbers < oldest:
        raise ImportError(
            f"thinwire.integrations.{extra or package} needs {package} >= {needed}, and {found} is installed; {line}"
        )
