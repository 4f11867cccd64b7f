# Written from src/report/figures.def by the target `tables`: do not edit.
# ruff: noqa: E501
"""The figures of the JSON, and the metrics made of them alone."""

from __future__ import annotations

# fmt: off
# object, member, metrics, text
FIGURES = (
    ("total", "accessible", "hakmem_accessible_bytes", "all of hakmem's memory = spans.accessible + huge.live + huge.kept + sampled.accessible + own.total"),
    ("total", "live", "", "the program's = slabs.live + spans.extents + huge.live + sampled.live"),
    ("spans", "accessible", "", "= spans.slabs + spans.extents + spans.extents_cached + spans.free_dirty + spans.free_clean + spans.claimed + spans.guards"),
    ("spans", "slabs", "hakmem_span_bytes{state=slabs}", "slabs"),
    ("slabs", "bytes", "", "spans.slabs = slabs.handed_out + slabs.free + slabs.never_allocated + slabs.rest"),
    ("slabs", "handed_out", "", "= slabs.live + slabs.cached + slabs.depots"),
    ("slabs", "live", "hakmem_slab_bytes{state=live} hakmem_live_bytes{owner=slabs}", "the program's blocks in slabs, and those in the hardened library's quarantine"),
    ("slabs", "cached", "hakmem_slab_bytes{state=cached}", "blocks in thread caches, as of each thread's last slow path: for each class and thread off by a magazine at most"),
    ("slabs", "depots", "hakmem_slab_bytes{state=depots}", "blocks in depots of arenas"),
    ("slabs", "free", "hakmem_slab_bytes{state=free}", "free blocks of slabs that hold others"),
    ("slabs", "never_allocated", "hakmem_slab_bytes{state=never_allocated}", "blocks not used since the slab was made"),
    ("slabs", "rest", "hakmem_slab_bytes{state=rest}", "what is left before the first block (colour) and behind the last"),
    ("spans", "extents", "hakmem_span_bytes{state=extents} hakmem_live_bytes{owner=extents}", "live extents"),
    ("extents", "count", "", "live extents"),
    ("extents", "requested", "", "of spans.extents, the requested bytes"),
    ("extents", "tail", "hakmem_extent_tail_bytes", "the ends of live extents' last spans: spans.extents - extents.requested"),
    ("spans", "extents_cached", "hakmem_span_bytes{state=extents_cached}", "freed extents on their way to the pool"),
    ("spans", "free_dirty", "hakmem_span_bytes{state=free_dirty}", "free, perhaps resident"),
    ("spans", "free_clean", "hakmem_span_bytes{state=free_clean}", "free and purged: resident only in a huge page"),
    ("spans", "claimed", "hakmem_span_bytes{state=claimed}", "being purged now"),
    ("spans", "guards", "hakmem_span_bytes{state=guards}", "inaccessible (hardened library)"),
    ("huge", "live", "hakmem_live_bytes{owner=huge}", "huge blocks"),
    ("huge", "count", "", "huge blocks"),
    ("huge", "kept", "hakmem_huge_kept_bytes", "freed mappings of huge blocks that are kept"),
    ("huge", "kept_count", "", "these mappings"),
    ("sampled", "live", "hakmem_live_bytes{owner=sampled}", "blocks of HAKMEM_GUARD_SAMPLE: requested bytes"),
    ("sampled", "count", "", "these blocks"),
    ("sampled", "accessible", "", "pages of these blocks"),
    ("own", "metadata", "hakmem_own_bytes{kind=metadata}", "arenas, thread caches, magazines"),
    ("own", "tables", "hakmem_own_bytes{kind=tables}", "page map, span metadata, bitmaps"),
    ("own", "other", "hakmem_own_bytes{kind=other}", "tables of huge and sampled blocks"),
    ("own", "total", "", "= own.metadata + own.tables + own.other; the statistics page is not in it"),
    ("process", "used", "hakmem_used_bytes", "what HAKMEM_LIMIT counts: memory held of the system, in use or kept"),
    ("process", "used_peak", "hakmem_used_peak_bytes", "the most that process.used has been, since the start or the fork"),
    ("process", "resident", "", "resident memory of the whole process, by the kernel; 0: unknown"),
    ("process", "resident_peak", "", "its peak; may be some hundred KiB too low"),
    ("caches", "arenas", "", "arenas"),
    ("caches", "used", "hakmem_caches{state=used}", "thread caches of threads"),
    ("caches", "unused", "hakmem_caches{state=unused}", "thread caches that ended threads left"),
    ("regions_total", "count", "hakmem_regions", "reservations of address space"),
    ("regions_total", "reserved", "", "their address space"),
    ("counters", "slow_paths", "hakmem_slow_paths_total", "refills and overflows of thread caches; the part of each thread cache wraps at 2^32"),
    ("purge", "count", "hakmem_purges_total", "ranges purged, unmapped huge blocks not included"),
    ("purge", "bytes", "hakmem_purged_bytes_total", "bytes purged"),
    ("guard", "frees", "hakmem_foreign_pointers_total{call=free}", "frees of pointers that are not hakmem's"),
    ("guard", "reallocs", "hakmem_foreign_pointers_total{call=realloc}", "reallocs of such pointers"),
    ("guard", "usable_sizes", "hakmem_foreign_pointers_total{call=malloc_usable_size}", "malloc_usable_size of such pointers"),
)
# Of metrics with labels: name, text.
FAMILIES = {
    "hakmem_span_bytes": "spans of the regions by state",
    "hakmem_slab_bytes": "slabs by what their blocks are",
    "hakmem_live_bytes": "blocks the program has, rounded up to their sizes",
    "hakmem_own_bytes": "memory of the allocator itself",
    "hakmem_caches": "thread caches: used, and left by ended threads",
    "hakmem_foreign_pointers_total": "calls with pointers that are not hakmem's",
}
