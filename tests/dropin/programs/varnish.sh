# varnishd varnish, curl curl
# A cache before a file server: 400 objects fetched, then again from the cache, gzipped, purged.
mkdir files
for i in $(seq 400); do seq "$i" $((i * 37)) > "files/$i"; done
(cd files && exec python3 -m http.server --bind 127.0.0.1 "$PORT") > web.log 2>&1 &
web=$!
cat > own.vcl << END
vcl 4.1;
backend default { .host = "127.0.0.1"; .port = "$PORT"; }
sub vcl_recv { if (req.method == "PURGE") { return (purge); } }
sub vcl_backend_response { set beresp.do_gzip = true; set beresp.ttl = 1h; }
sub vcl_deliver { unset resp.http.Age; set resp.http.X-Hits = obj.hits; }
END
varnishd -F -n "$PWD/v" -j none -a "127.0.0.1:$((PORT + 1))" -f "$PWD/own.vcl" -s malloc,64m > log 2>&1 &
server=$!
trap 'kill $server $web' EXIT
for turn in $(seq 200); do curl -sf "http://127.0.0.1:$((PORT + 1))/1" > /dev/null && break; sleep 0.1; done
for round in 1 2 3; do
  for i in $(seq 400); do echo "url = http://127.0.0.1:$((PORT + 1))/$i"; done > urls
  curl -s --compressed -K urls | cksum
done
curl -s -X PURGE "http://127.0.0.1:$((PORT + 1))/7" | grep -c Purged
curl -s "http://127.0.0.1:$((PORT + 1))/7" | cksum
