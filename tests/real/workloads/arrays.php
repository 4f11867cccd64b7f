<?php
// Arrays, strings, regular expressions, JSON, serialisation, sorting and generators. Prints checksums only.
declare(strict_types=1);

$rounds = (int) $argv[1];
mt_srand(42);

function table(int $count): array
{
    $table = [];
    for ($i = 0; $i < $count; $i++) {
        $key = 'key' . mt_rand(0, intdiv($count, 3));
        switch ($i % 5) {
            case 0:
                unset($table[$key]);
                break;
            case 1:
                $table[$key] = range(0, mt_rand(1, 60));
                break;
            case 2:
                $table[$key] = str_repeat('x', mt_rand(1, 3000));
                break;
            case 3:
                $table[$key] = preg_replace('/(\d)(\d)/', '<$2$1>', $key . $i . json_encode($table[$key] ?? null));
                break;
            default:
                $table[$key] = ['n' => $i, 'text' => strrev($key), 'half' => $i / 2];
        }
    }
    return $table;
}

function pieces(array $table): Generator
{
    foreach ($table as $key => $value) {
        yield $key => strlen(serialize($value));
    }
}

for ($round = 0; $round < $rounds; $round++) {
    $table = table(30000);
    if (unserialize(serialize($table)) !== $table) {
        throw new RuntimeException('serialize changed the table');
    }
    $heap = new SplMinHeap();
    foreach (pieces($table) as $key => $size) {
        $heap->insert([$size, $key]);
    }
    $sorted = iterator_to_array($heap, false);
    uasort($table, fn ($a, $b) => strlen(serialize($a)) <=> strlen(serialize($b)) ?: strcmp(md5(serialize($a)), md5(serialize($b))));
    echo $round, ' ', count($table), ' ', md5(serialize($sorted)), ' ', md5(json_encode(array_values($table))), "\n";
}
