"""The build backend: maturin, after the `folioswap` command was built and put into the package."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig

import maturin
from maturin import (  # noqa: F401
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_wheel,
)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
TARGET = os.path.join(ROOT, "crates", "python", "python", "folioswap", "_bin")


def put_command():
    """Builds the command and its library, and copies both into the package."""
    if sysconfig.get_config_var("Py_GIL_DISABLED") and sys.version_info < (3, 14):
        raise SystemExit("free-threaded CPython is supported from 3.14 on: use that, or CPython with the GIL")
    cargo = os.environ.get("CARGO", "cargo")
    try:
        subprocess.run(
            # The package's own library too: with the features that all three want, each dependency is built once.
            [cargo, "build", "--release", "--locked"]
            + [word for name in ("cli", "preload", "python") for word in ("-p", f"folioswap-{name}")],
            cwd=ROOT, check=True,
        )
    except FileNotFoundError:
        raise SystemExit("missing: cargo. Get it: curl --proto =https -sSf https://sh.rustup.rs | sh") from None
    about = subprocess.run(
        [cargo, "metadata", "--format-version", "1", "--no-deps", "--locked"], cwd=ROOT, check=True, stdout=subprocess.PIPE
    ).stdout
    built = os.path.join(json.loads(about)["target_directory"], "release")
    os.makedirs(TARGET, exist_ok=True)
    for name in ("folioswap", "libfolioswap_preload.so"):
        # By way of another name: a running command is replaced, not changed.
        shutil.copy(os.path.join(built, name), os.path.join(TARGET, name + ".new"))
        subprocess.run(["strip", os.path.join(TARGET, name + ".new")], check=False, stderr=subprocess.DEVNULL)
        os.replace(os.path.join(TARGET, name + ".new"), os.path.join(TARGET, name))


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Builds a wheel."""
    put_command()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """Builds an editable wheel."""
    put_command()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    """Builds a source archive."""
    return maturin.build_sdist(sdist_directory, config_settings)
