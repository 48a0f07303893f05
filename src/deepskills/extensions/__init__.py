"""Optional capabilities, one per file, each built on the public `SkillExtension` and nothing private of the agent."""
