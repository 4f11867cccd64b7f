# hakmem under Node. The package is that of the image's Debian release:
# packaging/debian/build.sh --suite bookworm OUT_DIR
FROM node:22-bookworm
COPY libhakmem0_*.deb /tmp/
RUN apt-get update \
 && apt-get install -y --no-install-recommends /tmp/libhakmem0_*.deb \
 && rm -rf /tmp/libhakmem0_*.deb /var/lib/apt/lists/*
ENV LD_PRELOAD=libhakmem.so.0
# The image is not built unless Node is served.
RUN HAKMEM_STATS=json node -e 'console.log("x".repeat(100000).length)' 2>&1 | grep -q '"slabs":[1-9]'
