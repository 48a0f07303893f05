"""A skill's other files: what is listed, what may be read, and which paths are safe."""
