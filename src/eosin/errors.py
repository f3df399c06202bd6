"""What goes wrong at the edge: something that a person gave cannot be used."""


class BadInput(ValueError):  # noqa: N818 (it says what is wrong)
    """Names what was given, what is allowed and what to do. The command line prints it as one line and exits with 2."""
