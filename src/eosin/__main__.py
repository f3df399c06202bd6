"""`python -m eosin` is the command `eosin`."""

from eosin.cli import main

if __name__ == "__main__":
    main()
