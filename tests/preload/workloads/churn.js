// Workers with Buffer churn, JSON and hashing; results printed in fixed order.
'use strict';
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
const crypto = require('crypto');
const zlib = require('zlib');
const { execFileSync } = require('child_process');

function churn(seed, rounds) {
  const hash = crypto.createHash('sha256');
  const kept = [];
  let state = seed;
  for (let i = 0; i < rounds; i++) {
    state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff;
    const buffer = Buffer.alloc(1 + (state % 20000), i & 255);
    kept[state % 64] = buffer;
    if (i % 8 === 0) {
      hash.update(Buffer.concat(kept.filter(Boolean)).subarray(0, 50000));
    }
  }
  const rows = Array.from({ length: 2000 }, (_, i) => ({ id: i, text: 'r'.repeat(i % 50), seed }));
  const text = JSON.stringify(rows);
  const packed = zlib.gzipSync(text, { level: 6 });
  if (JSON.stringify(JSON.parse(zlib.gunzipSync(packed).toString())) !== text) {
    throw new Error('round trip failed');
  }
  const key = crypto.pbkdf2Sync('password', 'salt' + seed, 500, 32, 'sha256');
  return hash.update(text).update(key).digest('hex');
}

async function main() {
  console.log('main', churn(1, 2000));
  // Two rounds, so that the second takes over what ended workers left.
  for (let round = 0; round < 2; round++) {
    const results = await Promise.all([1, 2, 3, 4].map((seed) => new Promise((resolve, reject) => {
      const worker = new Worker(__filename, { workerData: { seed: seed + 10 * round } });
      let result;
      worker.on('message', (message) => { result = message; });
      worker.on('error', reject);
      worker.on('exit', (code) => (code ? reject(new Error(`worker ended with ${code}`)) : resolve(result)));
    })));
    for (const { hash, block } of results) {
      const sum = crypto.createHash('sha256').update(Buffer.from(block)).digest('hex');
      console.log('worker', hash, block.byteLength, sum);
    }
  }
  const packed = await Promise.all(Array.from({ length: 16 }, (_, i) => new Promise((resolve, reject) => {
    const input = Buffer.alloc(100000, `pool ${i} `);
    zlib.deflate(input, (error, output) => (error ? reject(error) : resolve(output.length)));
  })));
  console.log('pool', packed.join(' '));
  console.log('child', execFileSync(process.execPath, ['-p', '"x".repeat(20).length'], { stdio: ['ignore', 'pipe', 'inherit'] }).toString().trim());
}

if (isMainThread) {
  main();
} else {
  const hash = churn(workerData.seed, 800);
  const block = new ArrayBuffer(300000);
  new Uint8Array(block).fill(workerData.seed);
  // The block changes owner: allocated here, freed by the main thread.
  parentPort.postMessage({ hash, block }, [block]);
}
