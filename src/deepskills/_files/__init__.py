"""A skill's other files: what lies beside its SKILL.md, which paths may name a file, and reading one safely."""
