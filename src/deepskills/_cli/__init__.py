"""The command line: the command itself, its output, the local files it reads, and one module per command.

It never imports LangChain, LangGraph or deepagents, which take seconds: a command that is slow to answer is not used.
"""
