'use strict';
// Four workers make buffers outside of V8's heap and send them to the main thread, which checks and drops them.
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
const zlib = require('zlib');

const WORKERS = 4;
const BLOCKS = 200;

if (isMainThread) {
  let blocks = 0;
  let wrong = 0;
  for (let n = 1; n <= WORKERS; n++) {
    const worker = new Worker(__filename, { workerData: n });
    worker.on('message', ({ bytes, packed, value }) => {
      blocks++;
      const same = Buffer.from(bytes).every((byte) => byte === value);
      if (!same || !zlib.gunzipSync(packed).equals(Buffer.from(bytes))) wrong++;
    });
  }
  process.on('exit', () => console.log(`workers: ${WORKERS}, blocks: ${blocks}, wrong: ${wrong}`));
} else {
  for (let n = 0; n < BLOCKS; n++) {
    const value = (workerData * 31 + n) % 256;
    const bytes = new Uint8Array(1 + n * 97 * workerData).fill(value);
    const packed = zlib.gzipSync(bytes);
    parentPort.postMessage({ bytes, packed, value }, [bytes.buffer]);
  }
}
