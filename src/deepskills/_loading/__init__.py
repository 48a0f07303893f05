"""Decisions about loaded skills, as values: arguments, budgets, the calls of one turn, and where texts go in a request.

Pure: no messages, no state, no I/O. `_middleware` reads what is needed, asks here, and applies the answer.
"""
