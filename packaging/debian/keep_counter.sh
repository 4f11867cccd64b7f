#!/bin/sh
# keep_counter.sh UNSTRIPPED STRIPPED: the stripped library gets back one name, that of the counters which `hakmem run` reads.
set -eu
objcopy=${OBJCOPY:-objcopy} objdump=${OBJDUMP:-objdump}
read -r address section <<END
$($objdump -t "$1" | awk '$NF == "hak_os_stats" { print $1, $4 }')
END
start=$($objdump -h "$2" | awk -v section="$section" '$2 == section { print $4 }')
[ -n "$start" ]
$objcopy --add-symbol "hak_os_stats=$section:$((0x$address - 0x$start)),local,object" "$2"
[ "$($objdump -t "$2" | awk '$NF == "hak_os_stats" { print $1 }')" = "$address" ]
