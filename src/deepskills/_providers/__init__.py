"""Where skills come from: directories of a backend, plugins, and the public class for everything else.

Whatever a source is, it is looked at by a plan that gives a `Listed`. `directory.py` alone knows backends, links and
paths; `ask.py` asks providers and checks what they give, `files.py` reads one skill of theirs.
"""
