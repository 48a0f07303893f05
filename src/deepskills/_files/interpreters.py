"""Which program runs a script: its shebang tells, else its suffix. Pure."""

import posixpath
import shlex

from deepskills._errors import SkillFormatError
from deepskills._format.problems import quoted

INTERPRETERS: dict[str, tuple[tuple[str, ...], ...]] = {
    ".py": (("python3",), ("python",)),
    ".sh": (("bash",), ("sh",)),
    ".bash": (("bash",),),
    ".js": (("node",),),
    ".mjs": (("node",),),
    ".cjs": (("node",),),
}
"""By suffix: programs with their options, the first that exists is taken."""

MAX_SHEBANG_BYTES = 1_024
"""Longest first line that is read as a shebang."""


def interpreters(path: str, content: bytes) -> tuple[tuple[str, ...], ...]:
    """Return the programs that can run a script, best first, each with its options.

    Raises:
        SkillFormatError: If neither the first line nor the suffix names one.
    """
    by_suffix = INTERPRETERS.get(posixpath.splitext(path)[1].lower(), ())
    by_shebang = _from_shebang(content)
    found = tuple(dict.fromkeys((*by_shebang, *by_suffix)))
    if not found:
        raise SkillFormatError(
            f"Cannot tell which program runs {quoted(path)}. "
            f"The script needs a first line such as `#!/usr/bin/env python3`, or one of the suffixes "
            f"{', '.join(INTERPRETERS)}."
        )
    return found


def _from_shebang(content: bytes) -> tuple[tuple[str, ...], ...]:
    line = content[: MAX_SHEBANG_BYTES + 1].removeprefix(b"\xef\xbb\xbf").splitlines()[:1]
    if not line or not line[0].startswith(b"#!") or len(line[0]) > MAX_SHEBANG_BYTES or b"\x00" in line[0]:
        return ()
    try:
        words = shlex.split(line[0][2:].decode())
    except ValueError:
        return ()
    if not words:
        return ()
    program, *options = words
    name = posixpath.basename(program)
    if name != "env":
        # Another machine may have the same program in another place.
        return ((program, *options), (name, *options)) if name else ()
    if options[:1] in (["-S"], ["--split-string"]):
        options = options[1:]
    elif options and options[0].startswith("-S"):
        options[0] = options[0][2:]
    if not options:
        return ()
    # What sets variables or has further options is left to `env` itself.
    return (("env", *options),) if options[0].startswith("-") or "=" in options[0] else (tuple(options),)
