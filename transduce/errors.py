"""What a user did wrong, as opposed to a fault of this package."""


class InputError(ValueError):
    """An argument, a setting or a file that cannot be used: the message gives the rule, the value and the way out.

    Commands and recipes print it as one line and end with 2. Any other exception is a fault of this package, with a traceback.
    """
