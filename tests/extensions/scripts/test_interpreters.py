"""Which program runs a script: the shebang first, then the suffix."""

import pytest

from deepskills import SkillFormatError
from deepskills.extensions.scripts.command import find_interpreters

PYTHON = (("python3",), ("python",))

CHOSEN: dict[tuple[str, bytes], tuple[tuple[str, ...], ...]] = {
    ("a.py", b"print()"): PYTHON,
    ("a.PY", b""): PYTHON,
    ("a.sh", b"echo"): (("bash",), ("sh",)),
    ("a.js", b"x"): (("node",),),
    ("a.mjs", b"x"): (("node",),),
    ("a.py", b"#!/usr/bin/env python3\n"): PYTHON,
    ("a.py", b"#!/usr/bin/env python3\r\nprint()"): PYTHON,
    ("a.py", b"\xef\xbb\xbf#!/usr/bin/env python3\n"): PYTHON,
    ("a", b"#!/usr/bin/env ruby"): (("ruby",),),
    ("a", b"#!/bin/bash -eu\n"): (("/bin/bash", "-eu"), ("bash", "-eu")),
    ("a", b"#! /bin/sh\n"): (("/bin/sh",), ("sh",)),
    ("a.ts", b"#!/usr/bin/env -S deno run --allow-read\n"): (("deno", "run", "--allow-read"),),
    ("a.ts", b"#!/usr/bin/env -Sdeno run\n"): (("deno", "run"),),
    ("a", b"#!/usr/bin/env -i python3\n"): (("env", "-i", "python3"),),
    ("a", b"#!/usr/bin/env -S LANG=C python3\n"): (("env", "LANG=C", "python3"),),
    ("a.py", b"#!/opt/venv/bin/python3.12\n"): (("/opt/venv/bin/python3.12",), ("python3.12",), *PYTHON),
    # Lines that are not a shebang after all.
    ("a.py", b"#!"): PYTHON,
    ("a.py", b"#!/usr/bin/env\n"): PYTHON,
    ("a.py", b"#!/usr/bin/'env\n"): PYTHON,
    ("a.py", b"#!" + b"x" * 2000): PYTHON,
    ("a.py", b"#!/bin/\x00sh\n"): PYTHON,
    ("a.py", b"#!/bin/\xff\n"): PYTHON,
    ("a.py", b" #!/bin/sh\n"): PYTHON,
}


@pytest.mark.parametrize(("given", "wanted"), CHOSEN.items(), ids=[f"{name} {line[:40]!r}" for name, line in CHOSEN])
def test_the_shebang_tells_then_the_suffix(given: tuple[str, bytes], wanted: tuple[tuple[str, ...], ...]) -> None:
    """Each kind of first line is read as a system would, with the suffix to fall back on."""
    assert find_interpreters(*given) == wanted


def test_a_script_that_names_no_program_is_refused() -> None:
    """The error says what the script needs."""
    for path, content in (("a", b"echo"), ("a.exe", b"\x7fELF"), ("a.ts", b"x"), ("py", b""), (".py", b"")):
        with pytest.raises(SkillFormatError, match="first line such as"):
            find_interpreters(path, content)
