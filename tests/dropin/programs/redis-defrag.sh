# redis-server redis-server
# A set with three blocks of four freed: active defragmentation moves the rest together, and resident memory shrinks.
"${REDIS:-redis-server}" --port 0 --unixsocket "$PWD/r.sock" --save "" --dir "$PWD" --enable-debug-command local --activedefrag no \
  --active-defrag-ignore-bytes 1mb --active-defrag-threshold-lower 5 --active-defrag-cycle-min 40 \
  --active-defrag-cycle-max 60 > log 2>&1 &
server=$!
trap 'kill $server' EXIT
cli() { redis-cli -s "$PWD/r.sock" "$@"; }
figure() { cli info all | tr -d '\r' | sed -n "s/^$1://p"; }
until cli ping > /dev/null 2>&1; do sleep 0.05; done
cli eval "for i = 1, 240000 do redis.call('set', 'k' .. i, string.rep('x', 150 + i % 60)) end return 'filled'" 0
cli eval "for i = 1, 240000 do if i % 4 ~= 0 then redis.call('del', 'k' .. i) end end return redis.call('dbsize')" 0
cli debug digest
cli memory purge
sleep 1
before=$(figure allocator_active)
cli config set activedefrag yes
for turn in $(seq 200); do
  sleep 0.1
  [ "$turn" -gt 20 ] && [ "$(figure active_defrag_running)" = 0 ] && break
done
cli memory purge
sleep 1
after=$(figure allocator_active)
moved=$(figure active_defrag_hits)
cli debug digest
echo "moved $moved, active $before to $after, frag $(figure allocator_frag_ratio)" >&2
[ "$moved" -gt 10000 ] && echo "blocks were moved"
[ "$((after * 10))" -lt "$((before * 7))" ] && echo "active memory shrank by 30 % or more"
