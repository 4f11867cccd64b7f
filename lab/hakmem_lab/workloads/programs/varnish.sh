#!/bin/sh
# varnish in front of a backend on a socket, which varnish_load.py starts.
#
#   varnish.sh prepare FOLDER
#   varnish.sh serve FOLDER PORT
set -eu
what=$1 folder=$2
. "$(dirname "$0")/other_user.sh"
as_user nobody nogroup

case $what in
prepare)
    cat >"$folder/site.vcl" <<VCL
vcl 4.1;
backend default { .path = "$folder/backend"; }
sub vcl_recv {
    if (req.method == "PURGE") { return (purge); }
    if (req.http.cookie ~ "session=") { set req.http.x-user = regsub(req.http.cookie, ".*session=([^;]*).*", "\1"); }
    unset req.http.cookie;
}
sub vcl_hash { hash_data(regsub(req.url, "\?.*", "")); return (lookup); }
sub vcl_synth { set resp.body = resp.reason; return (deliver); }
sub vcl_backend_response {
    set beresp.ttl = 1h;
    if (bereq.url ~ "^/page/") { set beresp.do_gzip = true; }
}
VCL
    # What varnish compiles is the same for each run: the C compiler is run once, without the allocator.
    cat >"$folder/compile" <<SH
#!/bin/sh
unset LD_PRELOAD
[ -e "$folder/site.so" ] || gcc -std=gnu11 -O2 -fpic -shared -w -o "$folder/site.so" "\$1"
cp "$folder/site.so" "\$2"
SH
    chmod 755 "$folder/compile"
    [ -z "$as" ] || chown nobody "$folder"
    ;;
serve)
    rm -rf "$folder/varnish"
    cd "$folder"
    exec $as /usr/sbin/varnishd -F -n "$folder/varnish" -a "127.0.0.1:$3" -j none -f "$folder/site.vcl" -s malloc,48m \
        -p cc_command="$folder/compile %s %o" -p vsl_space=2m -p thread_pool_min=20
    ;;
esac
