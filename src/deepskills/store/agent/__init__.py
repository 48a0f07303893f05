"""The store for agents: a middleware whose skills come from the database."""
