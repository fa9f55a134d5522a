"""Tests that need eight devices: they run in a process of their own, started by `test_virtual_devices`."""

import os

collect_ignore_glob = (
    [] if "--xla_force_host_platform_device_count=8" in os.environ.get("XLA_FLAGS", "") else ["test_*.py"]
)
