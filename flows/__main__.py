"""Start the command `bessemer` with a filtered environment. That may start Python again, so it comes before any import
that takes time."""

from model.environment import filter_environment


def main() -> None:
    """Run the command line."""
    filter_environment()
    from flows.cli import main as command_line

    command_line()


if __name__ == "__main__":
    main()
