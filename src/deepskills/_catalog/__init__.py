"""Which skills exist: discovery, the catalog and whom to trust about it, lookup by name, search.

Plans and values only. No framework is known here, and nothing calls a backend: plans yield requests that `_io`
performs.
"""
