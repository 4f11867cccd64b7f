#include "shadow.h"

#include <algorithm>
#include <cstring>

#include "finding.h"

namespace {

/* Small blocks are written and read whole; of larger ones both ends, and words in between that miss no span. */
constexpr size_t kWholeBytes = 1024, kEdgeBytes = 256, kSamples = 64, kStrideMax = 64 << 10, kSamplesMax = 512;

uint64_t word_at(uint64_t key, size_t offset) { return (key ^ offset) * UINT64_C(0xd6e8feb86659fd93); }

/* The next word of the sample, which depends on the block's usable size alone. */
size_t after(size_t offset, size_t usable) {
  if (usable <= kWholeBytes || offset < kEdgeBytes || offset + kEdgeBytes >= usable) return offset + 8;
  size_t stride = std::max(std::min(usable / kSamples, kStrideMax), usable / kSamplesMax) & ~size_t{7};
  size_t tail = (usable - kEdgeBytes + 7) & ~size_t{7};
  return std::min(offset + stride, tail);
}

/* visit(offset, bytes) for each word of the sample that begins below `end`; the last may be cut. */
template <class Visit>
void each_word(size_t usable, size_t end, Visit visit) {
  for (size_t offset = 0; offset < end; offset = after(offset, usable))
    visit(offset, std::min<size_t>(8, end - offset));
}

void fill(const Block &b) {
  each_word(b.usable, b.usable, [&](size_t offset, size_t bytes) {
    uint64_t word = word_at(b.key, offset);
    std::memcpy(b.p + offset, &word, bytes);
  });
}

}  // namespace

void verify_prefix(const Block &was, const unsigned char *p, size_t end) {
  if (was.spoiled || was.shared) return;
  each_word(was.usable, end, [&](size_t offset, size_t bytes) {
    uint64_t word = word_at(was.key, offset);
    if (std::memcmp(p + offset, &word, bytes) != 0)
      finding("block %p, %zu bytes (%zu usable): contents changed at byte %zu", static_cast<void *>(was.p), was.size,
              was.usable, offset);
  });
}

void verify_zero(const unsigned char *p, size_t bytes) {
  static const unsigned char zeros[8] = {};
  each_word(bytes, bytes, [&](size_t offset, size_t n) {
    if (std::memcmp(p + offset, zeros, n) != 0)
      finding("calloc of %zu bytes at %p is not zero at byte %zu", bytes, static_cast<const void *>(p), offset);
  });
}

void Shadow::enter(const Block &b) {
  blocks_.push_back(b);
  bytes_ += b.usable;
  if (!b.shared) ranges_[reinterpret_cast<uintptr_t>(b.p)] = reinterpret_cast<uintptr_t>(b.p) + b.usable;
}

void Shadow::add(Block b) {
  uintptr_t lo = reinterpret_cast<uintptr_t>(b.p), hi = lo + b.usable;
  if (!b.shared) {
    auto next = ranges_.lower_bound(lo);
    auto hit = next != ranges_.end() && next->first < hi ? next : ranges_.end();
    if (hit == ranges_.end() && next != ranges_.begin() && std::prev(next)->second > lo) hit = std::prev(next);
    if (hit != ranges_.end())
      finding("block %#zx to %#zx was handed out while %#zx to %#zx is live", static_cast<size_t>(lo),
              static_cast<size_t>(hi), static_cast<size_t>(hit->first), static_cast<size_t>(hit->second));
    b.key = next_key_++ * UINT64_C(0x9e3779b97f4a7c15);
    fill(b);
  }
  enter(b);
}

void Shadow::put_back(const Block &b) { enter(b); }

Block Shadow::take(size_t index) {
  Block b = blocks_[index];
  blocks_[index] = blocks_.back();
  blocks_.pop_back();
  bytes_ -= b.usable;
  if (!b.shared) ranges_.erase(reinterpret_cast<uintptr_t>(b.p));
  return b;
}

void Shadow::share(const void *p) {
  for (Block &b : blocks_) {
    if (b.p != p || b.shared) continue;
    b.shared = true;
    ranges_.erase(reinterpret_cast<uintptr_t>(p));
  }
}

void Shadow::spoil(const void *p, size_t bytes) {
  const unsigned char *lo = static_cast<const unsigned char *>(p);
  for (Block &b : blocks_) {
    if (b.p < lo + bytes && lo < b.p + b.usable) b.spoiled = true;
  }
}

bool Shadow::starts_at(const void *p) const {
  return std::any_of(blocks_.begin(), blocks_.end(), [p](const Block &b) { return b.p == p; });
}

const Block *Shadow::around(const void *p) const {
  for (const Block &b : blocks_) {
    if (!b.shared && b.p <= p && p < b.p + b.usable) return &b;
  }
  return nullptr;
}
