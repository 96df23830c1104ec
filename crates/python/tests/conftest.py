"""Pools for the tests, in both fault modes where the system permits monitor mode."""

import os

import folioswap
import pytest

MODES = ["direct"]
try:
    folioswap.Pool("16M", swap="ram:16M", faults="monitor")
    MODES.insert(0, "monitor")
except OSError as error:
    print(f"SKIP monitor mode: {error}")


@pytest.fixture(params=MODES)
def pool(request):
    """A pool of 32 MiB."""
    return folioswap.Pool("32M", faults=request.param)


def threads():
    """How many threads this process has."""
    return len(os.listdir("/proc/self/task"))
