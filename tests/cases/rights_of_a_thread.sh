#!/bin/bash
# EXPECT: exit 0, last line "ok"
# NEEDS: root program:setpriv
# A program changes the capabilities of its thread, and its user and groups: each order of that works.
set -eu
[ "$(setpriv --reuid 65534 --regid 65534 --clear-groups sh -c 'id -u; id -g' | tr '\n' ' ')" = "65534 65534 " ]
[ "$(setpriv --regid 65534 --clear-groups --inh-caps=-all --bounding-set=-all id -u)" = 0 ]
[ "$(setpriv --reuid 65534 --regid 65534 --init-groups --no-new-privs id -un)" = nobody ]
echo ok
