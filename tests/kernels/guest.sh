#!/bin/bash
# The first process of the guest: FOLIOSWAP short|long SECONDS PYTHON CASE.... Runs guest.py, powers off.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root PYTHONDONTWRITEBYTECODE=1
mount -t tmpfs run /run
mkdir -p /dev/shm /dev/pts
mount -t tmpfs shm /dev/shm
mkfs.ext4 -q -F /dev/vda && mount /dev/vda /var/tmp && chmod 1777 /var/tmp
ip link set lo up
echo "== $(uname -r), $(nproc) CPUs, $(ls -d /sys/devices/system/node/node* | wc -l) nodes," \
    "clock $(cat /sys/devices/system/clocksource/clocksource0/current_clocksource)"
"$4" "$(dirname "$0")/guest.py" "$1" "$2" "$3" "${@:5}" 2>&1
echo "== end $?"
sync
echo 1 >/proc/sys/kernel/sysrq
echo o >/proc/sysrq-trigger
sleep 20
