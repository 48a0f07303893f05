"""Skills of others on this machine: fetch them, look at them, place them, and know again what was placed.

What may live here: what is taken from a stranger at all (`paths`), what is meant by a source (`origin`), sources as
trees of files (`trees`, `git`, `site`), the skills that a tree holds (`candidates`), the lock (`lock`) and that of
another installer (`npx`), what lies on disk and how it changes as a whole or not at all (`place`), and what a command
would change (`project`, `differences`). Nothing of a source is executed, and nothing here knows an agent or a terminal.
"""
