"""SKILL.md bytes to values and back: reading, repair, writing, names, and the text of every problem. Pure."""
