"""The command line: what each command does and how it is shown."""
