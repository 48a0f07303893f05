"""The only code that calls a backend or a user's function: requests, their two drivers, and walks of directories."""
