"""The project's files as the lint tests see them: everything but build output and dot folders."""
import os
import re

SOURCE_SUFFIXES = ('.h', '.hpp', '.cc', '.cpp', '.c', '.cu')
SKIPPED_FOLDERS = {'build', '__pycache__', 'subprojects'}


def files(root, suffixes=None):
    """Paths relative to root, sorted, with '/' between parts."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in SKIPPED_FOLDERS and not f.startswith('.'))
        for name in sorted(names):
            if name == '.git':  # a file in a worktree
                continue
            if suffixes is None or name.endswith(suffixes):
                found.append(os.path.relpath(os.path.join(folder, name), root).replace(os.sep, '/'))
    return found


def read(root, path):
    with open(os.path.join(root, path), encoding='utf-8', errors='replace') as file:
        return file.read()


def without_comments(text):
    """C++ text with comments blanked and line numbers kept, so that prose can't trip a check of code."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)

    def blank(match):
        token = match.group(0)
        if token.startswith('/'):
            return '\n' * token.count('\n')
        return token

    return pattern.sub(blank, text)
