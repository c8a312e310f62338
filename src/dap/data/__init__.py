"""Images in several domains. A suite is a function that gives {domain name: dataset}."""

from dap.data.digits import DOMAINS, digits
from dap.data.splits import seed_hash, split

SUITES = {"digits": digits}

__all__ = ["DOMAINS", "SUITES", "digits", "seed_hash", "split"]
