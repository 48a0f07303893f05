"""Where skills come from: the public class, and the plans that ask a provider and check what it gives.

Directories of a backend need neither: `_catalog/discovery.py` searches them, `_files` reads them.
"""
