"""Whether a backend's error means that nothing is there, or that nobody could look. Pure."""

import re

_MAX_READ = 2_000
_MISSING_SIGNS = (
    *("path_not_found", "file_not_found", "no such file or directory", "filenotfounderror"),
    *("file not found", "path not found", "directory not found", "nosuchkey", "no such key"),
)
_OTHER_CAUSES = (
    *("denied", "forbidden", "unauthorized", "not authorized", "timed out", "timeout"),
    *("connection", "socket", "credential", "bucket", "daemon"),
)
"""Words of errors that are about the way to a file, whatever else they say."""

_NOT_FOUND = re.compile(
    r"\W*(?:error\W+)?(?:404\W+)?"
    r"(?:(?:file|path|directory|object|blob)(?:[ :]+(?:'[^']{1,1024}'|\"[^\"]{1,1024}\"|\S{1,1024}))?\s+)?not found\W*"
)
"""The whole of a text that says no more; a "not found" among other words may be about a host or a credential."""

_PATHS = re.compile(r"'[^']*/[^']*'|\"[^\"]*/[^\"]*\"|\S*/\S*")
"""What an error says of paths, which may hold any word."""

_STATUS_404 = re.compile(r"(?:^|\bhttp(?:/[\d.]+)?|\bstatus(?: code)?|\berror|\bcode)\W{0,3}404(?![\w/])")


def is_missing_error(error: str | None) -> bool:
    """Whether a backend's error text means that nothing lies at the path."""
    if not error:
        return False
    text = error[:_MAX_READ].lower()
    words = _PATHS.sub("", text)
    if any(cause in words for cause in _OTHER_CAUSES):
        return False
    is_sign = any(sign in text for sign in _MISSING_SIGNS) or _NOT_FOUND.fullmatch(text) is not None
    return is_sign or _STATUS_404.search(text) is not None
