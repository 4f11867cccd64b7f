# salmon salmon
# An index of 300 transcripts and the abundances of 60,000 reads, on one thread.
python3 - << END
import random
random.seed(5)
sequences = ["".join(random.choices("ACGT", k=random.randrange(400, 2000))) for _ in range(300)]
with open("t.fa", "w") as file:
    for number, text in enumerate(sequences):
        file.write(f">t{number}\n{text}\n")
with open("reads.fq", "w") as file:
    for number in range(60000):
        text = sequences[int(random.random() ** 2 * 300)]
        start = random.randrange(len(text) - 100)
        file.write(f"@r{number}\n{text[start:start + 100]}\n+\n{'I' * 100}\n")
END
salmon index -t t.fa -i index -k 23 -p 1 > index.log 2>&1; echo "index $?"
salmon quant -i index -l A -r reads.fq -p 1 -o out > quant.log 2>&1; echo "quant $?"
cksum < out/quant.sf
wc -l < out/quant.sf
