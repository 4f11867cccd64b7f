"""Objects that refer to each other, dictionaries, closures, sorting. Usage: objects.py SIZE SEED"""

import random
import sys
from collections import defaultdict, deque


class Node:
    def __init__(self, key, parent):
        self.key, self.parent, self.children, self.notes = key, parent, [], {}


size, seed = map(int, sys.argv[1:])
chance = random.Random(seed)
total = 0
for _ in range(size):
    nodes = [Node(0, None)]
    for key in range(1, 12000):
        node = Node(key, chance.choice(nodes[-200:]))
        node.parent.children.append(node)
        node.notes[f"note-{key % 97}"] = [key] * chance.randrange(12)
        nodes.append(node)
    depths, queue = defaultdict(list), deque([(nodes[0], 0)])
    while queue:
        node, depth = queue.popleft()
        depths[depth].append(f"{node.key}:{len(node.notes)}")
        queue.extend((child, depth + 1) for child in node.children)
    names = sorted((",".join(found), depth) for depth, found in depths.items())
    total = (total * 31 + sum(len(text) * depth for text, depth in names)) % 1000003
print(total)
