# nghttpd nghttp2-server, nghttpx nghttp2-proxy, nghttp nghttp2-client, h2load nghttp2-client
# HTTP/2 with many streams, straight and through a proxy.
mkdir files
for i in 1 2 3 4 5 6 7 8; do seq "$i" $((i * 9000)) > "files/$i"; done
nghttpd --no-tls -a 127.0.0.1 -d files "$PORT" > log 2>&1 &
server=$!
nghttpx --no-ocsp -f"127.0.0.1,$((PORT + 1));no-tls" -b"127.0.0.1,$PORT;;proto=h2" > proxy.log 2>&1 &
proxy=$!
trap 'kill $server $proxy' EXIT
for port in "$PORT" $((PORT + 1)); do
  for turn in $(seq 100); do nghttp "http://127.0.0.1:$port/1" > first 2> /dev/null && [ -s first ] && break; sleep 0.1; done
  for i in 1 2 3 4 5 6 7 8; do nghttp "http://127.0.0.1:$port/$i" | cksum; done
  h2load -n 4000 -c 16 -m 20 "http://127.0.0.1:$port/3" | grep -E '^(requests|status codes)'
done
