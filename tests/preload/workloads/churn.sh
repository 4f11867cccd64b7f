# Arrays, associative arrays, expansions, subshells and here-documents.
set -eu -o pipefail
declare -A table
declare -a list
for ((i = 0; i < 8000; i++)); do
    key="key$((i * 7919 % 1000))"
    table[$key]="${table[$key]-}$i,"
    list+=("${key/key/item}")
    if ((i % 3 == 0)); then
        unset "table[key$((i % 1000))]"
    fi
done
echo "${#table[@]} ${#list[@]}"
for key in $(printf '%s\n' "${!table[@]}" | sort | head -n 50); do
    echo "$key ${#table[$key]} ${table[$key]:0:20}"
done
text=""
for ((i = 0; i < 2000; i++)); do
    text+="line $i of text;"
done
echo "${#text} ${text//line/row}" | cksum
( value=$(echo "${list[@]:100:200}"); echo "${value^^}" ) | cksum
while read -r a b; do
    [[ $b =~ ^([0-9]+)x$ ]] && echo "$a ${BASH_REMATCH[1]}"
done <<< "$(for i in {1..40}; do echo "row$i ${i}x"; done)"
for i in 1 2 3 4; do
    ( text=""; for ((j = 0; j < 500 * i; j++)); do text+="$j "; done; echo "${#text}" ) &
    wait $!
done
