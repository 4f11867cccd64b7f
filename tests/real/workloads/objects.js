// Records, strings, maps, buffers and compression, as a small service would use them.
// Prints one checksum that depends on the size only. Usage: node objects.js [SIZE]
'use strict';
const crypto = require('crypto');
const zlib = require('zlib');

const size = Number(process.argv[2] || 20);
if (!Number.isInteger(size) || size < 1) {
  console.error(`objects.js: '${process.argv[2]}' is not a size`);
  process.exit(2);
}

let state = 12345;
function below(bound) {
  state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff;
  return (state >>> 8) % bound;
}

function makeRecord(id) {
  const tags = Array.from({ length: 1 + below(6) }, () => `tag-${below(500)}`);
  return { id, name: `customer ${below(10000)}`, tags, text: 'x'.repeat(below(200)), items: { [`k${below(50)}`]: below(1000) } };
}

// Copies as text, counted by tag.
function throughText(records, counts) {
  for (const record of JSON.parse(JSON.stringify(records))) {
    for (const tag of record.tags) counts.set(tag, (counts.get(tag) || 0) + record.text.length);
  }
}

// Buffers of many sizes, most of them dropped soon.
function throughBuffers(hash) {
  const kept = new Array(64);
  for (let i = 0; i < 3000; i++) {
    const buffer = Buffer.alloc(1 + below(20000), i & 255);
    kept[below(64)] = buffer;
    if (i % 100 === 0) hash.update(Buffer.concat(kept.filter(Boolean)).subarray(0, 40000));
  }
}

const hash = crypto.createHash('sha256');
const counts = new Map();
for (let round = 0; round < size; round++) {
  const records = Array.from({ length: 2000 }, (_, i) => makeRecord(i));
  throughText(records, counts);
  throughBuffers(hash);
  const text = records.map((r) => `${r.id};${r.name.toUpperCase()};${r.tags.sort().join(',')}`).join('\n');
  const packed = zlib.deflateSync(text, { level: 3 });
  if (zlib.inflateSync(packed).toString() !== text) throw new Error('round trip failed');
  hash.update(text);
}
hash.update(JSON.stringify([...counts].sort()));
console.log(`objects size=${size} checksum=${hash.digest('hex')}`);
