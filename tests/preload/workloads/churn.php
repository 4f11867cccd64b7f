<?php
// Extensions that Debian loads as shared objects (tokenizer, ctype, iconv, phar, posix), arrays, strings and JSON.
$names = [];
for ($i = 0; $i < 20000; $i++) {
    $names["key" . ($i * 7919 % 20011)] = str_repeat(chr(97 + $i % 26), $i % 300);
    if ($i % 3 == 0) unset($names["key" . ($i * 31 % 20011)]);
}
ksort($names);
echo count($names), " ", md5(json_encode($names)), "\n";
$code = "<?php\n" . str_repeat("function f(\$a) { return \$a . 'x'; }\n", 2000);
echo count(token_get_all($code)), " tokens\n";
echo md5(iconv("UTF-8", "UTF-16LE", str_repeat("grüße ", 10000))), " ", ctype_alpha("abc") ? "alpha" : "no", "\n";
$file = getcwd() . "/archive.tar";
$archive = new PharData($file);
for ($i = 0; $i < 50; $i++) $archive->addFromString("file$i", str_repeat("line $i\n", $i * 10));
unset($archive);
echo strlen((new PharData($file))["file49"]->getContent()), " bytes\n";
$child = proc_open([PHP_BINARY, "-r", "echo strlen(serialize(range(1, 5000)));"], [1 => ["pipe", "w"]], $pipes);
echo stream_get_contents($pipes[1]), "\n";
proc_close($child);
