#!/usr/bin/env python3
"""Holds docs/reliability.md to the tests: every row of its tables names at least one test, and each of them
exists. Usage: reliability.py ROOT. Prints one line per breach; exit status 1 if there is one.

A test is a link to its file and, in backticks behind a colon, the names of its cases:
    [frame_test](../tests/unit/transport/frame_test.cc): `bad input 2: lengths that …`, `another one`
Fuzz targets and the simulation are programs without cases; the link is enough."""
import os
import re
import sys

import tree

PAGE = 'docs/reliability.md'
# Of the numbered list of bad inputs: 13 is about devices that are not built, 20 on about codecs to come.
BAD_INPUTS = [*range(1, 13), *range(14, 20)]

ENTRY = re.compile(r'\[[^\]]+\]\(\.\./(tests/[^)]+)\)((?::\s*|,\s*)`[^`]+`(?:,\s*`[^`]+`)*)?')
CASE = re.compile(r'TEST_CASE(?:_TEMPLATE)?\(\s*((?:"(?:\\.|[^"\\])*"\s*)+)')
PROGRAM = re.compile(r'\bint main\(|\bLLVMFuzzerTestOneInput\b')


def cases(path, text):
    """Names of the cases in a test file."""
    if path.endswith('.py'):
        return set(re.findall(r'def (test_\w+)\(', text))
    found = set()
    for match in CASE.finditer(text):
        parts = re.findall(r'"((?:\\.|[^"\\])*)"', match.group(1))
        found.add(''.join(parts).replace('\\"', '"'))
    return found


def rows(text):
    """(line, cells) of every table row, without heads and rulers."""
    lines = text.split('\n')
    for number, line in enumerate(lines, 1):
        if not line.startswith('|') or re.match(r'^\|[-| :]+\|$', line):
            continue
        if number < len(lines) and re.match(r'^\|[-| :]+\|$', lines[number]):
            continue
        yield number, [cell.strip() for cell in line.strip('|').split('|')]


def check_entry(root, path, names):
    full = os.path.join(root, path)
    if not os.path.exists(full):
        yield f'no such test file {path}'
        return
    text = tree.read(root, path)
    if not names:
        if not PROGRAM.search(text):
            yield f'{path} has cases; name the ones that show it'
        return
    known = cases(path, text)
    for name in names:
        if name not in known:
            yield f'{path} has no case "{name}"'


def check_page(root):
    text = tree.read(root, PAGE)
    breaches, numbers, count = [], set(), 0
    for line, cells in rows(text):
        entries = ENTRY.findall(cells[-1])
        if len(cells) != 3 or not entries:
            breaches.append(f'{PAGE}:{line}: a row is fault, what the engine does, and the tests that show it')
            continue
        if match := re.match(r'(\d+)\b', cells[0]):
            numbers.add(int(match.group(1)))
        for path, names in entries:
            count += 1
            breaches += [f'{PAGE}:{line}: {what}' for what in check_entry(root, path, re.findall(r'`([^`]+)`', names))]
    breaches += [f'{PAGE}: bad input {number} has no row' for number in BAD_INPUTS if number not in numbers]
    return breaches, count


def main():
    root = os.path.abspath(sys.argv[1])
    breaches, count = check_page(root)
    for breach in breaches:
        print(breach)
    print(f'{count} references to tests, {len(breaches)} breaches')
    return 1 if breaches or count == 0 else 0


if __name__ == '__main__':
    sys.exit(main())
