"""`python -m deepskills`: the command line, or which extra it needs."""

import sys

NEEDED = frozenset({"click", "rich"})
"""What the extra `cli` installs."""

MISSING_EXTRA = 'The deepskills command needs the extra "cli". Install it: pip install "deepskills[cli]"\n'
"""What a user without the extra reads."""


INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended, as shells expect it."""


def main() -> None:
    """Run the command line; without its extra, say how to install it. An interrupt ends it quietly."""
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _run() -> None:
    try:
        from deepskills._cli import app as cli  # noqa: PLC0415 - the extra may not be there

        cli.main()
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in NEEDED:
            raise
        sys.stderr.write(MISSING_EXTRA)
        sys.exit(1)


if __name__ == "__main__":
    main()
