"""Skills of others on this machine: fetch them, look at them, place them, and know again what was placed.

What may live here: the lock (`lock`), where skills come from (`origin`, `git`, `archives`, `trees`), which skills a
source holds (`candidates`), what lies on disk (`disk`) and how it changes as a whole or not at all (`place`). Nothing
of a source is ever executed, and nothing here knows an agent or a terminal.
"""
