-- Queries whose hash tables, sorts and compiled expressions go through malloc in the server's processes.
SET work_mem = '8MB';
SELECT aid % 97 AS rest, count(*), sum(abalance), max(md5(aid::text)), string_agg(aid::text, ',' ORDER BY aid) FILTER (WHERE aid % 1009 = 0)
  FROM pgbench_accounts GROUP BY rest ORDER BY rest;
SELECT b.bid, count(*), sum(a.abalance + t.tbalance - b.bbalance) FROM pgbench_accounts a
  JOIN pgbench_branches b USING (bid) JOIN pgbench_tellers t ON t.bid = b.bid WHERE a.aid % 5 < 3 GROUP BY b.bid ORDER BY b.bid;
SET jit = on; SET jit_above_cost = 0; SET jit_inline_above_cost = 0; SET jit_optimize_above_cost = 0;
SELECT sum(abalance * 3 + aid % 7), sum(CASE WHEN aid % 3 = 0 THEN abalance ELSE -1 END), avg((aid * 31) % 1013)
  FROM pgbench_accounts WHERE abalance BETWEEN -4000 AND 4000 AND aid % 11 <> 5;
SET jit = off;
WITH RECURSIVE n(i, text) AS (SELECT 1, 'x' UNION ALL SELECT i + 1, right(text || i, 500) FROM n WHERE i < 20000)
SELECT count(*), md5(string_agg(text, ',' ORDER BY i)) FROM n;
SELECT rank, aid FROM (SELECT aid, rank() OVER (PARTITION BY bid ORDER BY abalance, aid) AS rank FROM pgbench_accounts) ranked
  WHERE rank <= 20 ORDER BY rank, aid;
SELECT md5(jsonb_agg(jsonb_build_object('aid', aid, 'tags', jsonb_build_array(bid, abalance)) ORDER BY aid)::text)
  FROM pgbench_accounts WHERE aid % 13 = 0;
SELECT count(*), count(DISTINCT word) FROM (SELECT regexp_split_to_table(repeat(md5(aid::text), 3), '[0-9]+') AS word
  FROM pgbench_accounts WHERE aid % 29 = 0) words;
DO $$ DECLARE total bigint := 0; r record;
BEGIN
  FOR i IN 1..300 LOOP
    BEGIN
      FOR r IN SELECT aid, repeat('y', aid % 900) AS text FROM pgbench_accounts WHERE aid % 500 = i LOOP total := total + length(r.text); END LOOP;
      IF i % 3 = 0 THEN RAISE EXCEPTION 'rolled back'; END IF;
    EXCEPTION WHEN raise_exception THEN total := total + 1;
    END;
  END LOOP;
  RAISE NOTICE 'total %', total;
END $$;
CREATE INDEX ON pgbench_accounts (abalance, aid);
CREATE INDEX ON pgbench_accounts USING hash (aid);
VACUUM (PARALLEL 2, ANALYZE) pgbench_accounts;
SELECT count(*) FROM pgbench_accounts WHERE abalance > 0;
