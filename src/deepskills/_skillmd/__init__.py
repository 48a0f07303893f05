"""SKILL.md bytes to values and back: reading, repair, writing, names, and the text of every problem.

Everything here is pure: no I/O, no logging, no framework. Reading never raises; what is wrong with a file is returned
as problems, and the caller decides whether to log, show or raise them.
"""
