#!/bin/sh
# A service: sqlite3 with work that comes in through a pipe.
{ cat load.sql; while sleep 0.2; do echo "UPDATE page SET slug = slug(title) WHERE id % 20 = abs(random()) % 20;"; done; } | exec sqlite3 :memory:
