-- What reports and applications ask: joins, windows, recursion, JSON, text. Every order is a whole one.
SELECT c.city, l.article, sum(l.price * l.count), count(DISTINCT o.id),
       string_agg(DISTINCT left(c.name, 14), ',' ORDER BY left(c.name, 14))
    FROM customer c JOIN orders o ON o.customer = c.id JOIN line l ON l.orders = o.id
    WHERE o.day BETWEEN date '2020-01-01' + :turn * 20 AND date '2020-01-01' + :turn * 20 + 150
    GROUP BY c.city, l.article ORDER BY 3 DESC, 1, 2 LIMIT 300;
SELECT id, customer, total, rank() OVER (PARTITION BY customer ORDER BY total DESC, id),
       sum(total) OVER (ORDER BY day, id)
    FROM (SELECT o.id, o.customer, o.day, sum(l.price * l.count) AS total FROM orders o JOIN line l ON l.orders = o.id
          WHERE o.customer % 20 = :turn % 20 GROUP BY o.id) AS sums ORDER BY day, id;
WITH RECURSIVE chain (id, depth, way) AS (
    SELECT id, 0, ARRAY[id] FROM customer WHERE id = :turn * 13 % 8000 + 1
    UNION ALL
    SELECT c.id, depth + 1, way || c.id
        FROM chain JOIN customer c ON c.id IN (chain.id * 2 % 8000 + 1, chain.id * 3 % 8000 + 1) WHERE depth < 11)
    SELECT depth, count(*), sum(id), max(way) FROM chain GROUP BY depth ORDER BY depth;
SELECT jsonb_agg(jsonb_build_object('name', c.name, 'about', c.about, 'orders',
        (SELECT jsonb_agg(jsonb_build_object('day', o.day, 'lines',
                (SELECT jsonb_agg(to_jsonb(l) ORDER BY l.id) FROM line l WHERE l.orders = o.id)) ORDER BY o.id)
         FROM orders o WHERE o.customer = c.id)) ORDER BY c.id)
    FROM customer c WHERE c.id BETWEEN :turn * 50 AND :turn * 50 + 400;
SELECT tag, count(*), array_agg(id ORDER BY id) FROM customer, jsonb_array_elements_text(about -> 'tags') tag
    WHERE name ~ '[0-9]{3}[a-f]' GROUP BY tag ORDER BY tag;
SELECT city, extract(year FROM day), count(*), max(upper(regexp_replace(note, '[0-9]+', '-', 'g')))
    FROM orders o JOIN customer c ON c.id = o.customer WHERE o.id % 4 = :turn % 4
    GROUP BY GROUPING SETS ((city), (extract(year FROM day)), (city, extract(year FROM day)), ())
    ORDER BY 1 NULLS FIRST, 2 NULLS FIRST;
