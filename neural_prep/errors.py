"""What ends a run with one line: the user's mistakes, and a store that cannot be read."""


class InputError(ValueError):
    """What the user gave cannot be used: a path, key, flag or file.

    The message is a single line that names the thing, what was found, what was expected and what to
    do. The command prints it without a traceback and exits with status 2.
    """


class ReadError(Exception):
    """Part of the store cannot be read now; the message says which. Starting again may help."""
