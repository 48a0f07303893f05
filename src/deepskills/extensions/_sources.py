"""Paths of sources that an operator trusts, compared as paths. Pure."""

from collections.abc import Iterable


def tidy_source(path: str) -> str:
    """Return a source's path without doubled or trailing slashes; a relative one stays relative."""
    root = "/" if path.startswith("/") else ""
    return root + "/".join(part for part in path.split("/") if part not in {"", "."})


def tidy_sources(parameter: str, paths: Iterable[str]) -> frozenset[str]:
    """Return paths to compare with.

    Raises:
        ValueError: If a single text was given where a list is expected: it would count letter by letter.
    """
    if isinstance(paths, str):
        raise ValueError(f"`{parameter}` takes a list of source paths, not the text {paths!r}.")  # noqa: TRY004
    return frozenset(tidy_source(path) for path in paths)
