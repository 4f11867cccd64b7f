# named bind9, dig bind9-dnsutils, named-checkzone bind9-utils, nsupdate bind9-dnsutils, rndc bind9-utils
# A zone of 6,000 names checked, served, asked, transferred, updated.
awk 'BEGIN { print "$TTL 60\n@ IN SOA ns a 1 60 60 60 60\n@ IN NS ns\nns IN A 127.0.0.1";
  for (i = 0; i < 6000; i++) printf "h%d IN A 10.%d.%d.%d\nh%d IN TXT \"text %d\"\n", i, i/65536, i/256%256, i%256, i, i*i }' > zone
named-checkzone -D -o dumped example.test zone
cksum < dumped
cat > named.conf << END
options { directory "$PWD"; listen-on port $PORT { 127.0.0.1; }; listen-on-v6 { none; }; recursion no; pid-file none;
  session-keyfile "$PWD/session.key"; managed-keys-directory "$PWD"; dnssec-validation no; };
controls { };
statistics-channels { inet 127.0.0.1 port $((PORT + 1)); };
zone "example.test" { type primary; file "zone"; allow-update { 127.0.0.1; }; allow-transfer { any; }; };
END
named -g -c named.conf > log 2>&1 &
server=$!
trap 'kill $server' EXIT
for turn in $(seq 100); do dig +short +tries=1 +time=1 @127.0.0.1 -p "$PORT" ns.example.test > first 2> /dev/null; grep -q ^1 first && break; sleep 0.1; done
cat first
awk 'BEGIN { for (i = 0; i < 6000; i += 3) printf "h%d.example.test A\nh%d.example.test TXT\nmissing%d.example.test A\n", i, i, i }' > asked
dig +short @127.0.0.1 -p "$PORT" -f asked | sort | cksum
dig @127.0.0.1 -p "$PORT" example.test AXFR +noall +answer | sort | cksum
{ echo "server 127.0.0.1 $PORT"; echo "zone example.test"
  for i in $(seq 500); do echo "update add new$i.example.test 60 A 10.9.9.$((i % 250))"; done; echo send; } | nsupdate
dig +short @127.0.0.1 -p "$PORT" new500.example.test
dig @127.0.0.1 -p "$PORT" example.test AXFR +noall +answer | grep -v SOA | sort | cksum
curl -s "http://127.0.0.1:$((PORT + 1))/json/v1/mem" | python3 -c 'import json, sys; m = json.load(sys.stdin)["memory"]; print(m["InUse"] > 100000, m["Malloced"] >= m["InUse"])'
