"""What the drivers must recognize of the frameworks, without importing them.

A class of a module that nobody has imported has no instances, so that a look at what is imported is enough. The
command line, which needs no framework, then starts without the second that importing them takes.
"""

import sys


def is_instance_of(value: object, module: str, name: str) -> bool:
    """Whether `value` is an instance of a class of a framework's module, imported or not."""
    known = getattr(sys.modules.get(module), name, None)
    return known is not None and isinstance(value, known)


def accepts_timeout(shell: object) -> bool:
    """Whether a backend's `execute` takes a timeout; older ones do not."""
    protocol = sys.modules.get("deepagents.backends.protocol")
    return protocol is not None and bool(protocol.execute_accepts_timeout(type(shell)))


def passes_through(error: BaseException) -> bool:
    """Whether an exception is LangGraph's own, such as an interrupt: nobody but LangGraph may catch it."""
    return is_instance_of(error, "langgraph.errors", "GraphBubbleUp")
