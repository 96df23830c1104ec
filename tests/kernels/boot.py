#!/usr/bin/env python3
"""Runs a chosen part of the suite on Debian's other kernels, in a virtual machine of QEMU's without KVM.

Usage: boot.py FOLIOSWAP [--short] [VERSION...]. The versions are 6.1 and 6.12, from Debian 12's packages. The guest's root
is this machine's, read-only by 9p under an overlay in RAM; /var/tmp is a scratch disk. guest.py runs there and prints
PASS, FAIL and SKIP lines. Emulation is 10 to 40 times slower than the machine itself, so sizes are small.
"""

import glob
import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.dirname(HERE)
CASES = os.path.join(TESTS, "cases")
sys.path[:0] = [TESTS, os.path.join(TESTS, "programs"), CASES]
from compare import Skip  # noqa: E402
from run import Case  # noqa: E402
from suite import need  # noqa: E402

VERSIONS = ("6.1", "6.12")
MODULES = ("virtio_pci", "virtio_blk", "9pnet_virtio", "9p", "overlay", "ext4", "loop", "zram")
PACKERS = {".xz": ("xz", "xz-utils"), ".zst": ("zstd", "zstd")}
APPLETS = ("sh", "mount", "insmod", "switch_root", "mkdir", "uname")
SHORT_CASES = (
    "early_blocks.c", "fork_in_handler.c", "mremap_pages.c", "vmsplice_reuse.c", "signal_masks.c", "mremap_fixed.c",
    "io_beside_guard.c", "static_data.c",
)
# The guest begins nothing after these seconds. Then it has MORE_S for what runs, and for the boot.
SHORT_S, LONG_S = 90, 1500
MORE_S = {True: 300, False: 700}
# Without `tsc=reliable` Linux 6.1 takes the HPET, each reading of which leaves the guest.
KERNEL_WORDS = "console=ttyS0 quiet panic=1 tsc=reliable"
ROOT_SHARE = "version=9p2000.L,ro,msize=512000,cache=loose"
INIT = """#!/bin/sh
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev
while read f; do insmod /mods/$f 2>/dev/null; done < /order
mount -t 9p -o trans=virtio,{share} root /ro || exec sh
mount -t tmpfs -o size=60% t /rw; mkdir /rw/u /rw/w
mount -t overlay -o lowerdir=/ro,upperdir=/rw/u,workdir=/rw/w o /mnt
for m in proc sys dev; do mount --move /$m /mnt/$m; done
exec switch_root /mnt /bin/bash {guest} {words}
"""


def newest(version):
    """The name of the newest kernel package that apt-get offers. Raises Skip."""
    listed = subprocess.run(["apt-cache", "pkgnames", f"linux-image-{version}."], capture_output=True, text=True, timeout=60)
    names = re.findall(rf"^linux-image-{re.escape(version)}\.[\d.+-]+(?:deb\d+)?-amd64-unsigned$", listed.stdout, re.MULTILINE)
    if not names:
        raise Skip(f"apt-get offers no linux-image-{version} here")
    return max(names, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])


def download(version, folder):
    """The file of a kernel package. Raises Skip."""
    name = newest(version)
    command = ["timeout", "-k", "5", "150", "apt-get", "-q", "-o", "Acquire::Retries=1", "download", name]
    got = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    packages = glob.glob(os.path.join(folder, "*.deb"))
    if got.returncode != 0 or not packages:
        raise Skip(f"{name} cannot be downloaded: {(got.stderr.strip().splitlines() or ['?'])[-1]}")
    return packages[0]


def kernel(version, cache):
    """The folder of an unpacked kernel package, and the kernel in it. Downloads it if needed. Raises Skip."""
    unpacked = os.path.join(cache, version)
    image = os.path.join(unpacked, "boot", "vmlinuz-*")
    if not glob.glob(image):
        for program, package in (("apt-get", "apt"), ("dpkg", "dpkg")):
            need(program, package)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            os.chmod(folder, 0o777)
            try:
                package = download(version, folder)
            except Skip:
                # The lists may be missing or old.
                subprocess.run(["timeout", "-k", "5", "60", "apt-get", "-q", "update"], capture_output=True)
                package = download(version, folder)
            subprocess.run(["dpkg", "-x", package, unpacked + ".new"], check=True, timeout=150)
        base, release = modules_of(unpacked + ".new")
        subprocess.run(["depmod", "-b", base, release], capture_output=True, check=True, timeout=150)
        shutil.rmtree(unpacked, ignore_errors=True)
        os.rename(unpacked + ".new", unpacked)
    return unpacked, glob.glob(image)[0]


def modules_of(unpacked):
    """The folder with the lib/modules of a kernel package, and the release."""
    base = os.path.join(unpacked, "usr") if os.path.isdir(os.path.join(unpacked, "usr/lib/modules")) else unpacked
    return base, os.listdir(os.path.join(base, "lib/modules"))[0]


def module_files(unpacked):
    """The files of MODULES and what they need, in the order of loading."""
    base, release = modules_of(unpacked)
    files = []
    for name in MODULES:
        shown = subprocess.run(["modprobe", "-S", release, "-d", base, "--show-depends", name], capture_output=True, text=True)
        files += [line.split()[1] for line in shown.stdout.splitlines() if line.startswith("insmod")]
    return list(dict.fromkeys(files))


def initramfs(unpacked, words, output):
    """Writes an initramfs that mounts the root and runs the guest's script with these words."""
    busybox = need("busybox", "busybox-static")
    with open(busybox, "rb") as file:
        if b"/ld-linux" in file.read(4096):
            raise Skip(f"{busybox} is not static. Get it: apt-get install busybox-static")
    with tempfile.TemporaryDirectory() as root:
        for name in ("bin", "proc", "sys", "dev", "mnt", "mods", "ro", "rw"):
            os.mkdir(os.path.join(root, name))
        shutil.copy(busybox, os.path.join(root, "bin/busybox"))
        for applet in APPLETS:
            os.symlink("busybox", os.path.join(root, "bin", applet))
        order = []
        for path in module_files(unpacked):
            name = os.path.basename(path)
            plain = re.sub(r"\.(xz|zst)$", "", name)
            packer = PACKERS.get(os.path.splitext(name)[1])
            command = [need(*packer), "-qdc"] if packer else ["cat"]
            with open(os.path.join(root, "mods", plain), "wb") as file:
                subprocess.run([*command, path], stdout=file, check=True, timeout=60)
            order.append(plain)
        with open(os.path.join(root, "order"), "w", encoding="utf-8") as file:
            file.write("\n".join(order) + "\n")
        with open(os.path.join(root, "init"), "w", encoding="utf-8") as file:
            file.write(INIT.format(share=ROOT_SHARE, guest=os.path.join(HERE, "guest.sh"), words=" ".join(words)))
        os.chmod(os.path.join(root, "init"), 0o755)
        names = subprocess.run(["find", "."], cwd=root, capture_output=True, timeout=60, check=True).stdout
        packed = subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=root, input=names, capture_output=True, timeout=60)
        with open(output, "wb") as file:
            file.write(gzip.compress(packed.stdout, 1))


def compiled(is_short, folder):
    """The names of the cases to run. Compiles those in C, which takes too long inside."""
    os.makedirs(folder, exist_ok=True)
    every = sorted(name for name in os.listdir(CASES) if name.endswith((".c", ".sh", ".py")) and name != "run.py")
    chosen = [*SHORT_CASES] if is_short else [*SHORT_CASES, *(name for name in every if name not in SHORT_CASES)]
    for name in [*chosen]:
        program, source = os.path.join(folder, name[:-2]), os.path.join(CASES, name)
        is_old = not os.path.exists(program) or os.path.getmtime(program) < os.path.getmtime(source)
        try:
            if name.endswith(".c") and is_old:
                Case(source).compile(folder)
        except (Skip, RuntimeError) as reason:
            print(f"SKIP {name}: {reason}", flush=True)
            chosen.remove(name)
    return chosen


def boot(version, folioswap, is_short, cache, cases):
    """Boots one kernel. Prints what the guest prints. Returns whether it ended well."""
    unpacked, image = kernel(version, cache)
    limit_s = SHORT_S if is_short else LONG_S
    ended_s = limit_s + MORE_S[is_short]
    with tempfile.TemporaryDirectory(prefix="folioswap-kernel-", dir="/var/tmp") as folder:
        ram, disk = os.path.join(folder, "initramfs"), os.path.join(folder, "disk")
        initramfs(unpacked, [folioswap, "short" if is_short else "long", str(limit_s), sys.executable, *cases], ram)
        with open(disk, "wb") as file:
            file.truncate(4 << 30)
        nodes = [word for node in range(2) for word in (
            "-object", f"memory-backend-ram,id=m{node},size=1536M",
            "-numa", f"node,memdev=m{node},cpus={node}")]
        command = ["timeout", "-k", "5", str(ended_s), need("qemu-system-x86_64", "qemu-system-x86")]
        # Without CMPXCHG16B: QEMU 7.2 loses the flags where it emulates that, and the kernel ends in a double fault.
        command += ["-accel", "tcg,thread=multi", "-cpu", "max,-cx16", "-smp", "2", "-m", "3G", *nodes]
        command += ["-nographic", "-no-reboot", "-nodefaults", "-serial", "stdio", "-kernel", image, "-initrd", ram]
        command += ["-append", KERNEL_WORDS, "-drive", f"file={disk},format=raw,if=virtio,cache=unsafe"]
        command += ["-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap"]
        command += ["-device", "virtio-9p-pci,fsdev=root,mount_tag=root"]
        ended = False
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as machine:
            for line in machine.stdout:
                text = re.sub(r"\x1b[\[(]?[0-9;?]*[A-Za-z]|\r|[^ -~\t]", "", line.decode("utf-8", "replace")).rstrip()
                said = re.search(r"\b(PASS|FAIL|SKIP) .*", text)
                ended |= "== end 0" in text
                print(f"{said[1]} {version}: {said[0][5:]}" if said else "  " + text, flush=True)
    if not ended:
        why = f"nor after {ended_s} s" if machine.returncode == 124 else f"QEMU's exit status {machine.returncode}"
        print(f"FAIL {version}: something failed, or the guest did not come to its end: {why}", flush=True)
    return ended


def copied(folioswap, folder):
    """The path of a copy of the program, beside one of the library that it injects. The guest caches the files that it
    reads, so a build must not change them while it runs."""
    os.chmod(folder, 0o755)
    shutil.copy(os.path.join(os.path.dirname(folioswap), "libfolioswap_preload.so"), folder)
    return shutil.copy(folioswap, folder)


def get_ready():
    """Finds or installs what boots a kernel. Raises Skip."""
    if os.geteuid() != 0:
        raise Skip("needs root: the guest reads all of this machine's files")
    for program, package in (("qemu-system-x86_64", "qemu-system-x86"), ("cpio", "cpio"), ("depmod", "kmod")):
        need(program, package)


def main():
    """Boots the named kernels, or all. Exit status 1 if one failed."""
    is_short = "--short" in sys.argv
    folioswap, words = os.path.abspath(sys.argv[1]), [word for word in sys.argv[2:] if word != "--short"]
    cache = os.path.join(os.path.dirname(os.path.dirname(folioswap)), "kernels")
    os.makedirs(cache, exist_ok=True)
    good = True
    with tempfile.TemporaryDirectory(prefix="bin-", dir=cache) as folder:
        program = copied(folioswap, folder)
        for version in words or VERSIONS:
            try:
                get_ready()
                good &= boot(version, program, is_short, cache, compiled(is_short, os.path.join(cache, "cases")))
            except (Skip, subprocess.SubprocessError, OSError) as reason:
                print(f"SKIP {version}: {reason}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
