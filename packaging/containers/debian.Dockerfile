# hakmem under every program of an image made from Debian. The packages are those of its release:
# packaging/debian/build.sh --suite bookworm OUT_DIR
FROM debian:12
COPY libhakmem0_*.deb /tmp/
RUN apt-get update \
 && apt-get install -y --no-install-recommends /tmp/libhakmem0_*.deb \
 && rm -rf /tmp/libhakmem0_*.deb /var/lib/apt/lists/*
ENV LD_PRELOAD=libhakmem.so.0
# The image is not built unless a program is served.
RUN HAKMEM_STATS=json perl -e 'my @a = map { "x" x $_ } 1 .. 1000' 2>&1 | grep -q '"slabs":[1-9]'
