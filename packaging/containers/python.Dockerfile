# hakmem under Python, from the wheel. With an index that has it: pip install hakmem.
FROM python:3.12-bookworm
COPY hakmem-*.whl /tmp/
RUN pip install --no-cache-dir /tmp/hakmem-*.whl && rm /tmp/hakmem-*.whl \
 && ln -s "$(python3 -c 'from importlib.util import find_spec; print(find_spec("hakmem").submodule_search_locations[0])')/lib/libhakmem.so" \
      /usr/local/lib/libhakmem.so.0
ENV LD_PRELOAD=/usr/local/lib/libhakmem.so.0
# The image is not built unless Python is served. PYTHONMALLOC=malloc gives it Python's small objects too.
RUN HAKMEM_STATS=json python3 -c 'print(len([bytes(n) for n in range(1000, 2000)]))' 2>&1 | grep -q '"slabs":[1-9]'
