"""Every sentence that a model reads, and how a stranger's text is made harmless first. Pure."""
