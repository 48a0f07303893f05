"""One way to run the command in the process of a test."""

from click.testing import CliRunner, Result

from deepskills._cli.app import app


def invoke(*args: str, **env: str) -> Result:
    """Run `deepskills` with arguments, its output in pipes."""
    return CliRunner(env=env).invoke(app, list(args), prog_name="deepskills")
