"""`python -m duoplda` is the command `duoplda`."""

from duoplda.cli import main

if __name__ == "__main__":
    main()
