# hakmem under Java: the virtual machine's own memory, not the Java heap, which it maps itself. The image is Ubuntu 24.04, whose glibc
# 2.39 takes the package of Debian 12: packaging/debian/build.sh --suite bookworm OUT_DIR
FROM eclipse-temurin:21-jre
COPY libhakmem0_*.deb /tmp/
RUN apt-get update \
 && apt-get install -y --no-install-recommends /tmp/libhakmem0_*.deb \
 && rm -rf /tmp/libhakmem0_*.deb /var/lib/apt/lists/*
ENV LD_PRELOAD=libhakmem.so.0
# The image is not built unless the virtual machine is served.
RUN HAKMEM_STATS=json java -version 2>&1 | grep -q '"slabs":[1-9]'
