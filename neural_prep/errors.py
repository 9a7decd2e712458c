"""The user's mistakes: one exception whose message is the one line that the command prints."""


class InputError(ValueError):
    """What the user gave cannot be used: a path, key, flag or file.

    The message is a single line that names the thing, what was found, what was expected and what to
    do. The command prints it without a traceback and exits with status 2.
    """
