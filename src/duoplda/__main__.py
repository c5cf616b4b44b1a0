"""The command `duoplda`, which is also `python -m duoplda`."""

import sys


def main() -> None:
    """Run the command line, or say what it needs."""
    try:
        from duoplda.cli import run
    except ModuleNotFoundError as error:
        if error.name != "typer":
            raise
        sys.exit("duoplda: error: the command line needs typer: pip install 'duoplda[cli]'")
    run()


if __name__ == "__main__":
    main()
