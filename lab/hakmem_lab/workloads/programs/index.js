// Objects, maps, strings and buffers over a log. Usage: node index.js FILE
const lines = require('fs').readFileSync(process.argv[2], 'utf8').split('\n');
const pages = new Map();
let bytes = 0;
lines.forEach((line, number) => {
  for (const word of line.split(' ')) {
    if (!pages.has(word)) pages.set(word, []);
    pages.get(word).push({ number, text: word.toUpperCase() });
  }
  bytes += Buffer.concat([Buffer.from(line), Buffer.alloc(number % 20000)]).length;
});
const best = [...pages].sort((a, b) => b[1].length - a[1].length || (a[0] < b[0] ? -1 : 1)).slice(0, 100);
for (const [word, found] of best) console.log(word, found.length, JSON.stringify(found.slice(0, 2)));
console.log(bytes, pages.size);
