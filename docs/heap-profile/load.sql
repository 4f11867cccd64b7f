.load ./slug
CREATE TABLE page(id INTEGER PRIMARY KEY, title TEXT, slug TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000)
INSERT INTO page SELECT i, 'Chapter ' || i || ': of things that were kept too long, and why nobody knew', '' FROM n;
UPDATE page SET slug = slug(title);
CREATE INDEX by_slug ON page(slug);
SELECT count(DISTINCT slug) FROM page;
