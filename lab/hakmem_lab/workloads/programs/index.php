<?php // Arrays, strings and regular expressions over a log. Usage: php index.php FILE
ini_set('memory_limit', '-1');
$count = []; $pages = [];
foreach (file($argv[1]) as $number => $line) {
    foreach (preg_split('/\s+/', trim($line)) as $word) {
        $count[$word] = ($count[$word] ?? 0) + 1;
        $pages[substr($word, 0, 4)][] = ['at' => $number, 'word' => strrev($word)];
    }
}
ksort($count);
arsort($count);
foreach (array_slice($count, 0, 100, true) as $word => $n) echo "$word $n ", count($pages[substr($word, 0, 4)]), "\n";
echo strlen(json_encode($pages)), "\n";
