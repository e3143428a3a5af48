#!/usr/bin/env python3
"""House rules that no compiler checks. Usage: tidy.py ROOT. Prints one line per breach; exit status 1 if
there is one. Exceptions for lengths stand in exceptions.txt beside this file and may only shrink."""
import os
import re
import sys

import tree

FILE_LINES_HARD = 600
FUNCTION_LINES_HARD = 70
README_LINES = 60

# Pattern -> (why, folders where it is allowed). Looked for in code without its comments.
BANNED = [
    (re.compile(r'\b(sleep_for|sleep_until|usleep|nanosleep)\s*\('),
     'no sleeping: wait on an event, or poll with a deadline', ['perf']),
    (re.compile(r'(?<![\w.>])(?:::|std::)?sleep\s*\(\s*\d'),
     'no sleeping: wait on an event, or poll with a deadline', ['perf']),
    (re.compile(r'\b(secure_)?getenv\s*\('), 'no configuration by environment: only the service manager is heard (engine/daemon)',
     ['engine/daemon', 'tests', 'perf']),
    (re.compile(r'\bstd::random_device\b'), 'entropy comes from a seed, or from getrandom at one place',
     []),
    (re.compile(r'\bassert\s*\('), 'use KVRAIL_ASSERT, which release builds keep', []),
    (re.compile(r'\busing\s+namespace\s+std\b'), 'name what you use', []),
    (re.compile(r'\bstd::shared_ptr\b'), 'no shared ownership on the data path',
     ['include/kvrail', 'engine', 'tests', 'perf']),
]

MACHINE_PATH = re.compile(r'(?<![\w.])/(?:work|home|root)/\w')
LINK = re.compile(r'(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)|!\[[^\]\n]*\]\(([^)\s]+)\)')
FENCE = re.compile(r'^(```|~~~).*?^\1', re.M | re.S)


def load_exceptions(root):
    """Lines 'file PATH LINES' or 'function PATH LINES'."""
    limits = {}
    path = os.path.join(root, 'tests/lint/exceptions.txt')
    if os.path.exists(path):
        for line in open(path, encoding='utf-8'):
            words = line.split('#')[0].split()
            if len(words) == 3:
                limits[(words[0], words[1])] = int(words[2])
    return limits


def allowed(path, folders):
    return any(path.startswith(folder + '/') for folder in folders)


def check_banned(path, code):
    for pattern, why, folders in BANNED:
        if allowed(path, folders):
            continue
        for match in pattern.finditer(code):
            yield f'{path}:{code.count(chr(10), 0, match.start()) + 1}: {match.group(0).strip()}: {why}'


def check_length(path, text, limits):
    lines = text.count('\n')
    limit = limits.get(('file', path), FILE_LINES_HARD)
    if lines > limit:
        yield f'{path}:1: {lines} lines, the limit is {limit}'


def functions(code):
    """(line, length) of each function defined at the left margin, as clang-format lays them out."""
    start = None
    statement_start = 0
    for number, line in enumerate(code.split('\n'), 1):
        if start is None:
            if line[:1].strip() and not line.startswith('}'):
                statement_start = number
                opener = line
            if line.endswith('{') and statement_start:
                if not re.match(r'(namespace|extern|class|struct|enum|union|#|template <.*> *(class|struct))',
                                opener) and ' = {' not in line and 'TEST_CASE' not in opener:
                    start = statement_start
                statement_start = 0 if start is None else statement_start
        elif line.startswith('}'):
            yield start, number - start + 1
            start = None


def check_functions(path, code, limits):
    limit = limits.get(('function', path), FUNCTION_LINES_HARD)
    for line, length in functions(code):
        if length > limit:
            yield f'{path}:{line}: function of {length} lines, the limit is {limit}'


def check_links(root, path, text):
    text = FENCE.sub(lambda m: '\n' * m.group(0).count('\n'), text)
    for match in LINK.finditer(text):
        target = match.group(1) or match.group(2)
        if re.match(r'[a-z][a-z0-9+.-]*:', target) or target.startswith('#'):
            continue
        resolved = os.path.normpath(os.path.join(root, os.path.dirname(path), target.split('#')[0]))
        if not os.path.exists(resolved):
            yield f'{path}:{text.count(chr(10), 0, match.start()) + 1}: broken link {target}'
        elif not resolved.startswith(os.path.abspath(root)):
            yield f'{path}: link {target} leads out of the repository'


def check_readmes(root, paths):
    """Every top-level folder, and every folder of sources below the product's folders, explains itself."""
    folders = {path.split('/')[0] for path in paths if '/' in path}
    for path in paths:
        top = path.split('/')[0]
        if path.endswith(tree.SOURCE_SUFFIXES) and top not in ('tests', 'docs'):
            folders.add(os.path.dirname(path))
    for folder in sorted(folders):
        if not os.path.exists(os.path.join(root, folder, 'README.md')):
            yield f'{folder}: has no README.md'


def check_tree(root):
    paths = tree.files(root)
    limits = load_exceptions(root)
    breaches = []
    for path in paths:
        if path.endswith(('.bin', '.png', '.kvrw', '.svg')) or path == 'LICENSE':
            continue
        text = tree.read(root, path)
        if path.endswith(tree.SOURCE_SUFFIXES):
            code = tree.without_comments(text)
            breaches += check_banned(path, code)
            breaches += check_length(path, text, limits)
            if not path.startswith('tests/'):
                breaches += check_functions(path, code, limits)
        if path.endswith('.md'):
            breaches += check_links(root, path, text)
        if not path.startswith('tests/lint/'):
            for match in MACHINE_PATH.finditer(text):
                line = text.count('\n', 0, match.start()) + 1
                breaches.append(f'{path}:{line}: machine path {match.group(0)}…')
        if path.startswith('scripts/') and text.startswith('#!') and not os.access(
                os.path.join(root, path), os.X_OK):
            breaches.append(f'{path}: has a #! line but is not executable')
    breaches += check_readmes(root, paths)
    return breaches, len(paths)


def main():
    root = os.path.abspath(sys.argv[1])
    breaches, count = check_tree(root)
    for breach in breaches:
        print(breach)
    print(f'{count} files, {len(breaches)} breaches')
    return 1 if breaches or count == 0 else 0


if __name__ == '__main__':
    sys.exit(main())
