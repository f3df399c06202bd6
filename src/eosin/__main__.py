"""`python -m eosin` is the command `eosin`."""

from eosin.cli.main import main

if __name__ == "__main__":
    main()
