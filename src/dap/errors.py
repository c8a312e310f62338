"""The one exception for everything a user can mend."""


class DapError(ValueError):
    """Wrong input or a damaged file. The message is one line that names the thing and the remedy."""
