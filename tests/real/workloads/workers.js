// Workers in waves. Each passes its buffers to the main thread, which passes them on to the next wave: memory allocated
// by one thread is freed by another, often after its own has ended. Every third wave also has workers that are ended in
// the middle of their work. Prints checksums in fixed order.
'use strict';
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
const crypto = require('crypto');
const zlib = require('zlib');

const PER_WAVE = 6;

function sha(buffer) {
  return crypto.createHash('sha256').update(Buffer.from(buffer)).digest('hex').slice(0, 16);
}

function work(seed, inherited, forever) {
  let state = seed + 1;
  const next = (limit) => {
    state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff;
    return state % limit;
  };
  const kept = inherited.map((buffer) => Buffer.from(buffer));
  const hash = crypto.createHash('sha256');
  for (let i = 0; forever || i < 400; i++) {
    kept[next(40)] = Buffer.alloc(1 + next(i % 10 ? 9000 : 400000), i & 255);
    if (i % 20 === 0) {
      const text = Buffer.concat(kept.filter(Boolean)).subarray(0, 60000);
      const packed = zlib.deflateSync(text, { level: 3 });
      if (!zlib.inflateSync(packed).equals(text)) throw new Error('round trip failed');
      hash.update(text);
    }
  }
  const buffers = [1000, 50000, 700000].map((size) => {
    const buffer = new ArrayBuffer(size + next(100));
    new Uint8Array(buffer).fill(seed & 255);
    return buffer;
  });
  parentPort.postMessage({ digest: hash.digest('hex').slice(0, 16), buffers }, buffers);
}

function start(seed, inherited, forever) {
  return new Worker(__filename, { workerData: { seed, inherited, forever }, transferList: inherited });
}

function finish(worker) {
  return new Promise((resolve, reject) => {
    let result;
    worker.on('message', (message) => { result = message; });
    worker.on('error', reject);
    worker.on('exit', (code) => (code ? reject(new Error(`worker ended with ${code}`)) : resolve(result)));
  });
}

async function main(waves) {
  let inherited = Array.from({ length: PER_WAVE }, () => []);
  for (let wave = 0; wave < waves; wave++) {
    const doomed = wave % 3 === 2 ? [start(1, [], true), start(2, [], true)] : [];
    const results = await Promise.all(inherited.map((buffers, n) => finish(start(wave * PER_WAVE + n, buffers, false))));
    await Promise.all(doomed.map((worker) => worker.terminate()));
    console.log(wave, results.map(({ digest, buffers }) => [digest, ...buffers.map(sha)].join('.')).join(' '));
    inherited = results.map(({ buffers }) => buffers);
  }
  const packed = await Promise.all(Array.from({ length: 200 }, (_, i) => new Promise((resolve, reject) => {
    zlib.gzip(Buffer.alloc(30000 + i * 500, `pool ${i} `), (error, output) => (error ? reject(error) : resolve(output.length)));
  })));
  const keys = await Promise.all(Array.from({ length: 40 }, (_, i) => new Promise((resolve, reject) => {
    crypto.scrypt('password', `salt ${i}`, 24, { N: 1024 }, (error, key) => (error ? reject(error) : resolve(key.toString('hex'))));
  })));
  console.log(packed.join(' '), sha(Buffer.from(keys.join())));
}

if (isMainThread) {
  main(Number(process.argv[2]));
} else {
  work(workerData.seed, workerData.inherited, workerData.forever);
}
