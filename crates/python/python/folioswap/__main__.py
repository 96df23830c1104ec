"""`python -m folioswap`: the `folioswap` command."""

import os
import sys


def main() -> None:
    """Becomes the command that is in the package."""
    command = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_bin", "folioswap")
    if not os.path.exists(command):
        sys.exit("folioswap: this package was built without the command: build it by `pip install .`")
    if not os.access(command, os.X_OK):
        os.chmod(command, 0o755)
    os.execv(command, ["folioswap", *sys.argv[1:]])


if __name__ == "__main__":
    main()
