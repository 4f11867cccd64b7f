"""scikit-learn: words counted, a forest and a line fitted. Usage: learn.py FILE SIZE"""

import sys
from pathlib import Path

from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import SGDClassifier

lines = Path(sys.argv[1]).read_text().splitlines()
states = [line.split('" ')[1][:3] for line in lines]
words = TfidfVectorizer(max_features=800).fit_transform(lines)
forest = RandomForestClassifier(int(sys.argv[2]), random_state=1, max_depth=12)
forest.fit(words[:4000], states[:4000])
line = SGDClassifier(random_state=1, max_iter=5, tol=None).fit(words, states)
print(
    sum(a == b for a, b in zip(forest.predict(words), line.predict(words), strict=True)),
    words.shape,
)
