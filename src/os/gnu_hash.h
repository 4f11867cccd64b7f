/* An ELF object's hash table of GNU's kind, which does not say how many symbols the object has. Four numbers (buckets,
 * the first symbol in the table, words of a filter, a shift), the filter, the buckets, and a hash a symbol from the
 * first one on: a bucket names the first symbol of a chain, whose last hash is odd. */
#ifndef HAK_OS_GNU_HASH_H
#define HAK_OS_GNU_HASH_H

#include <link.h>
#include <stddef.h>
#include <stdint.h>

#include "base/compiler.h"

/* The last chain ends with the last symbol. */
HAK_INLINE size_t hak_os_gnu_hash_symbols(const uint32_t *table) {
  uint32_t buckets = table[0], first = table[1], filter_words = table[2], last = 0;
  const uint32_t *bucket = table + 4 + filter_words * (sizeof(ElfW(Addr)) / sizeof *table), *chain = bucket + buckets;
  for (uint32_t i = 0; i < buckets; i++) last = bucket[i] > last ? bucket[i] : last;
  if (last < first) return first; /* all chains are empty */
  while ((chain[last - first] & 1) == 0) last++;
  return (size_t)last + 1;
}

#endif
