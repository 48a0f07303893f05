"""Decisions about loaded skills, as values: budgets, calls of one turn, and where texts stand in a request."""
