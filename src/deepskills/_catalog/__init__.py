"""Which skills there are: sources, discovery, lookup by name, and search. No framework is known here."""
