"""Images in several domains: the public benchmarks, the built-in digits, and anybody's own folders and tables."""

from dap.data.digits import DOMAINS, digits
from dap.data.images import Images
from dap.data.splits import seed_hash, split, split_suite
from dap.data.suites import Suite, load_suite
from dap.specs.suites import SUITES

__all__ = ["DOMAINS", "SUITES", "Images", "Suite", "digits", "load_suite", "seed_hash", "split", "split_suite"]
