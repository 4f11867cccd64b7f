group_by(.where.city) | map({city: .[0].where.city, sum: (map(.price) | add), names: map(.name | ascii_upcase),
  tags: ([.[].tags[]] | group_by(.) | map({key: .[0], value: length}) | from_entries)}) | sort_by(.sum) | .[-200:]
