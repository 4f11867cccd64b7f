#!/bin/bash
# Inside a chroot that is thrown away: the packages of OLD are installed, upgraded to those of NEW, and purged. After that the
# file system is what it was before, the dependencies apart, which are installed first.
#
#   upgrade_purge.sh OLD NEW
set -euo pipefail
old=$1 new=$2

debs() { find "$1" -maxdepth 1 -name '*.deb' ! -name '*-dbgsym_*' | sort; }
mapfile -t names < <(for deb in $(debs "$new"); do dpkg-deb -f "$deb" Package; done)
state() {
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /var/lib/dpkg -o -path /var/lib/apt \
        -o -path /var/log -o -path /var/cache -o -path "$old" -o -path "$new" -o -path /etc/ld.so.cache \) -prune -o \
        -printf '%M %u:%g %p %l\n' | sort
}
# Every program would begin to use it, or cease to run.
nothing_preloaded() {
    [ ! -e /etc/ld.so.preload ] || { echo "there is an /etc/ld.so.preload" >&2; exit 1; }
    ! grep -rqs --exclude=ld.so.cache hakmem /etc || { echo "a file of /etc names hakmem" >&2; exit 1; }
}
versions() { dpkg-query -W -f '${Package} ${Version} ${db:Status-Status}\n' "${names[@]}" | sort; }
wanted() { for deb in $(debs "$1"); do echo "$(dpkg-deb -f "$deb" Package) $(dpkg-deb -f "$deb" Version) installed"; done | sort; }
expect() {
    local got
    got=$(versions)
    [ "$got" = "$(wanted "$1")" ] || { printf 'installed:\n%s\n' "$got" >&2; exit 1; }
    printf '%s\n' "$got"
    nothing_preloaded
    HAKMEM_STATS=json LD_PRELOAD=libhakmem.so.0 perl -e 'print 1' 2>&1 | grep -q '"slabs":[1-9]'
}

apt-get -q update
own=$(IFS='|'; echo "${names[*]}")
for deb in $(debs "$new"); do dpkg-deb -f "$deb" Depends | tr , '\n'; done | sed 's/^ *//' | grep -vE "^($own)\b" | paste -s -d , >/tmp/depends
apt-get -qy satisfy "$(cat /tmp/depends)"
apt-get -qy install perl-base man-db
state >/tmp/before

dpkg -i $(debs "$old")
expect "$old"
dpkg --compare-versions "$(dpkg-deb -f "$(debs "$old" | head -n 1)" Version)" lt "$(dpkg-deb -f "$(debs "$new" | head -n 1)" Version)"
dpkg -i $(debs "$new")
expect "$new"
# Bytecode and the like of a run must go as well.
for name in "${names[@]}"; do [ "$name" != hakmem ] || hakmem run -- true; done
dpkg --purge "${names[@]}"
! dpkg-query -W "${names[@]}" 2>/dev/null | grep . || { echo "not purged" >&2; exit 1; }
nothing_preloaded
state >/tmp/after
diff /tmp/before /tmp/after || { echo "left behind or lost, above" >&2; exit 1; }
echo "nothing is left"
