"""An XML tree read by ElementTree, changed and written. Usage: tree.py FILE"""

import sys
from xml.etree import ElementTree

tree = ElementTree.parse(sys.argv[1])
cities = {}
for item in tree.getroot():
    cities.setdefault(item.get("city"), []).append(item.findtext("name"))
    for tag in item.findall("tag"):
        tag.text = tag.text.upper()
        ElementTree.SubElement(item, "see").text = f"{tag.text}-{item.get('id')}"
text = ElementTree.tostring(tree.getroot(), encoding="unicode")
print(len(text), text[-800:], len(cities))
