"""The commands, one module per subject: the catalog, validation, new skills, the doctor's report."""
