// The server of http_load.py in Node.js: JSON, text, buffers, packed answers. Usage: server.js PORT
const http = require('http'), zlib = require('zlib'), crypto = require('crypto');

const sessions = new Map();

function page(count) {
  const rows = [];
  for (let i = 0; i < count; i++)
    rows.push(`<tr><td>${i}</td><td class="name">article ${(i * 7919) % 1000}</td><td>${(i * 31) % 97}.00</td></tr>`);
  return `<html><body><table>\n${rows.join('\n')}\n</table></body></html>\n`;
}

function order(text) {
  const given = JSON.parse(text);
  const total = (line) => line.count * line.price;
  const lines = given.lines.map((line) => ({ ...line, total: total(line), words: line.note.split(' ') }));
  const sum = lines.reduce((all, line) => all + line.total, 0);
  const id = crypto.createHash('sha256').update(text).digest('hex');
  return JSON.stringify({ id, customer: given.customer, lines, sum });
}

// Answers of some size are packed, as servers of the web do.
function answer(request, response, body) {
  const send = (data) => {
    response.writeHead(200, { 'Content-Length': data.length });
    response.end(data);
  };
  const data = Buffer.isBuffer(body) ? body : Buffer.from(body);
  if (data.length < 1000 || Buffer.isBuffer(body)) return send(data);
  zlib.deflate(data, (error, packed) => send(packed));
}

http.createServer((request, response) => {
  const [, kind, name] = request.url.split('/');
  const parts = [];
  request.on('data', (part) => parts.push(part));
  request.on('end', () => {
    const body = Buffer.concat(parts);
    if (kind === 'page') return answer(request, response, page(Number(name)));
    if (kind === 'blob') return answer(request, response, Buffer.alloc(Number(name), 'blob'));
    if (kind === 'orders') return answer(request, response, order(body.toString()));
    if (kind !== 'session') return response.writeHead(404, { 'Content-Length': 0 }).end();
    if (request.method === 'PUT') {
      sessions.set(name, body);
      return answer(request, response, Buffer.from('kept\n'));
    }
    return answer(request, response, sessions.get(name));
  });
}).listen(Number(process.argv[2]), '127.0.0.1');
