-- Customers, orders and their lines: all that is in them follows from the number of the row.
CREATE TABLE customer AS
    SELECT i AS id, 'customer ' || md5(i::text) AS name, 'city ' || i * 7919 % 97 AS city,
           jsonb_build_object('since', 1990 + i % 30, 'tags',
                              (SELECT jsonb_agg('t' || i * j % 53) FROM generate_series(1, i % 7 + 1) j)) AS about
    FROM generate_series(1, 8000) i;
CREATE TABLE orders AS
    SELECT i AS id, i * 10007 % 8000 + 1 AS customer, date '2020-01-01' + i * 31 % 1500 AS day,
           repeat(md5(i::text), i % 5) AS note
    FROM generate_series(1, 40000) i;
CREATE TABLE line AS
    SELECT i AS id, i * 15485863::bigint % 40000 + 1 AS orders, 'article ' || i * 7907 % 700 AS article,
           i * 6133 % 9000 AS price, i % 9 + 1 AS count
    FROM generate_series(1, 120000) i;
ALTER TABLE customer ADD PRIMARY KEY (id);
ALTER TABLE orders ADD PRIMARY KEY (id);
CREATE INDEX ON orders (customer);
CREATE INDEX ON line (orders);
ANALYZE;
