# rapmap rapmap
# A quasi-index of 200 sequences, and 40,000 reads mapped to it.
python3 - << END
import random
random.seed(3)
sequences = ["".join(random.choices("ACGT", k=random.randrange(500, 3000))) for _ in range(200)]
with open("t.fa", "w") as file:
    for number, text in enumerate(sequences):
        file.write(f">t{number}\n{text}\n")
with open("r.fa", "w") as file:
    for number in range(40000):
        text = random.choice(sequences)
        start = random.randrange(len(text) - 90)
        file.write(f">r{number}\n{text[start:start + 90]}\n")
END
rapmap quasiindex -t t.fa -i index > index.log 2>&1; echo "index $?"
rapmap quasimap -i index -r r.fa -t 1 -o mapped.sam > map.log 2>&1; echo "map $?"
grep -v '^@PG' mapped.sam | sort | cksum
wc -l < mapped.sam
