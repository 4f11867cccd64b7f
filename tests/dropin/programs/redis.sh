# redis-server redis-server
# Lists, hashes, strings and sorted sets, a save, a reload; digests of the data, and MEMORY, which reads mallctl.
redis-server --port 0 --unixsocket "$PWD/r.sock" --save '' --dir "$PWD" --daemonize no --enable-debug-command local > log 2>&1 &
server=$!
trap 'kill $server' EXIT
cli() { redis-cli -s "$PWD/r.sock" "$@"; }
until cli ping > /dev/null 2>&1; do sleep 0.05; done
cli eval "for i = 1, 60000 do
  redis.call('set', 's' .. i, string.rep('v', i % 700)); redis.call('hset', 'h' .. i % 900, i, i * i)
  redis.call('rpush', 'l' .. i % 90, i); redis.call('zadd', 'z', i * 7919 % 1009, i)
  if i % 3 == 0 then redis.call('del', 's' .. i / 3) end end return redis.call('dbsize')" 0
cli debug digest
cli save
cli debug reload
cli debug digest
cli memory purge
cli memory malloc-stats > stats.txt
wc -c < stats.txt | awk '{ print ($1 > 200) ? "malloc-stats answered" : "malloc-stats empty" }'
# Its own count of what it has, and what the system says of it, beside stats.*.
cli info memory | tr -d '\r' | awk -F: '{ is[$1] = $2 } function near(a, b) { return (a > b ? a - b : b - a) < 1000000 }
  END { print near(is["allocator_allocated"], is["used_memory"]) ? "allocated as counted, but for 1 MB" : "allocated is another number"
    print is["allocator_resident"] <= is["used_memory_rss"] && is["allocator_active"] <= is["allocator_resident"] ? "in order" : "out of order"
    printf "allocated %d, counted %d, active %d, resident %d, rss %d\n", is["allocator_allocated"], is["used_memory"],
      is["allocator_active"], is["allocator_resident"], is["used_memory_rss"] > "/dev/stderr" }'
cli memory doctor > /dev/null
cli info memory | tr -d '\r' | grep -E '^mem_allocator' | cut -d- -f1
