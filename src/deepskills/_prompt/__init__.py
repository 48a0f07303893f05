"""Every sentence that a model reads. Pure."""
