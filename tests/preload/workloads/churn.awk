# Associative arrays, string building and splitting over the input lines.
{
    count[$1]++
    text[$1] = text[$1] substr($2, 1, 3)
    n = split($0, part, /[0-9]+/)
    for (i = 1; i <= n; i++) {
        seen[part[i], i] += length(part[i])
    }
    if (NR % 1000 == 0) {
        delete seen
    }
    gsub(/[aeiou]/, "<&>")
    characters += length($0)
}
END {
    PROCINFO["sorted_in"] = "@ind_str_asc"
    for (key in count) {
        print key, count[key], length(text[key])
    }
    print length(seen), characters
}
