'use strict';
// The path of the library, for whoever starts node in a way of their own: LD_PRELOAD=$(node -p "require('hakmem').library")

const fs = require('fs');
const path = require('path');

const file = path.join(__dirname, 'lib', `${process.platform}-${process.arch}`, 'libhakmem.so');

// null where there is no library for this system.
exports.library = fs.existsSync(file) ? file : null;
exports.version = require('./package.json').version;
