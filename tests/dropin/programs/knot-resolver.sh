# kresd knot-resolver, dig bind9-dnsutils
# Answers from 4,000 local names and views, asked over UDP and TCP.
awk 'BEGIN { for (i = 0; i < 4000; i++) printf "10.1.%d.%d n%d.made.zone\n", i/256, i%256, i }' > hosts
cat > kresd.conf << END
net.listen('127.0.0.1', $PORT)
modules = { 'hints > iterate', 'policy', 'stats' }
hints.add_hosts('$PWD/hosts')
policy.add(policy.suffix(policy.DENY, {todname('blocked.zone')}))
policy.add(policy.suffix(policy.ANSWER({ [kres.type.A] = { rdata = kres.str2ip('192.0.2.7'), ttl = 60 } }), {todname('fixed.zone')}))
cache.size = 10 * MB
END
kresd -n -c kresd.conf "$PWD" > log 2>&1 &
server=$!
trap 'kill $server' EXIT
for turn in $(seq 100); do dig +short +tries=1 +time=1 @127.0.0.1 -p "$PORT" n1.made.zone > first 2> /dev/null; grep -q ^1 first && break; sleep 0.1; done
cat first
awk 'BEGIN { for (i = 0; i < 4000; i += 2) printf "n%d.made.zone A\nx%d.blocked.zone A\ny%d.fixed.zone A\n", i, i, i }' > asked
dig @127.0.0.1 -p "$PORT" +noall +answer +comments -f asked | grep -E '^[a-z]|status' | sed 's/id: [0-9]*//; s/\t[0-9]*\t/\t/' | sort | cksum
dig +tcp +short @127.0.0.1 -p "$PORT" -f asked | sort | cksum
