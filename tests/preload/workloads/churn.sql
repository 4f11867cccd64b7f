PRAGMA cache_size = -4000;
CREATE TABLE customer (id INTEGER PRIMARY KEY, name TEXT NOT NULL, region TEXT NOT NULL);
CREATE TABLE event (id INTEGER PRIMARY KEY, customer INTEGER NOT NULL, kind TEXT, amount REAL, note TEXT);
BEGIN;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
INSERT INTO customer SELECT i, printf('customer %05d', (i * 7919) % 5000), 'region ' || (i % 17) FROM n;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 120000)
INSERT INTO event
SELECT i, (i * 2654435761) % 5000 + 1, 'kind ' || (i % 23), ((i * 48271) % 100003) / 100.0,
       substr('the quick brown fox jumps over the lazy dog and runs into the forest', 1 + i % 30, 1 + i % 37)
FROM n;
COMMIT;
CREATE INDEX event_customer ON event (customer);
CREATE INDEX event_kind_amount ON event (kind, amount);
CREATE INDEX event_note ON event (note);
ANALYZE;
SELECT c.region, e.kind, count(*), printf('%.2f', sum(e.amount)), max(e.note)
  FROM event e JOIN customer c ON c.id = e.customer
 GROUP BY c.region, e.kind ORDER BY 1, 2;
SELECT name, rank() OVER (ORDER BY total DESC, name) FROM
  (SELECT c.name, round(sum(e.amount), 2) AS total FROM customer c JOIN event e ON e.customer = c.id GROUP BY c.id)
 ORDER BY 2, 1 LIMIT 100;
SELECT length(group_concat(note, '|')), count(DISTINCT note) FROM (SELECT note FROM event ORDER BY id);
UPDATE event SET note = note || note || note WHERE id % 5 = 0;
DELETE FROM event WHERE id % 7 = 0;
SELECT json_group_object(kind, n) FROM (SELECT kind, count(*) AS n FROM event GROUP BY kind ORDER BY kind);
VACUUM;
PRAGMA integrity_check;
SELECT count(*), sum(length(note)) FROM event;
