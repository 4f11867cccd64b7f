# toulbar2 toulbar2
# A weighted constraint problem solved to its optimum: 18 variables, a cost for each pair.
awk 'BEGIN { n = 18; d = 6; srand(7); printf "made %d %d %d 1000\n", n, d, n * (n - 1) / 2;
  for (i = 0; i < n; i++) printf "%d ", d; print "";
  for (i = 0; i < n; i++) for (j = i + 1; j < n; j++) { printf "2 %d %d 0 %d\n", i, j, d * d;
    for (a = 0; a < d; a++) for (b = 0; b < d; b++) printf "%d %d %d\n", a, b, (a * 7 + b * 13 + i * 3 + j * 5 + a * b * i) % 9 } }' > made.wcsp
toulbar2 made.wcsp -v=-1 -s=1 2>&1 | grep -E '^ *[0-9 ]+$|Optimum|New solution' | sed 's/ in .*//'
