#!/usr/bin/env python3
"""Adds up Meson's test logs. Usage: summary.py NAME=BUILD/meson-logs/testlog.json …

A doctest binary counts with each of its cases, any other test as one. Prints the reasons of skips (a test that
exits with 77, or a line 'SKIP: reason' in its output), the names of failures, and last, alone on its line,
'N passed, N failed[, N skipped]'. Exit status 1 if anything failed or nothing ran."""
import json
import re
import sys

CASES = re.compile(r'\[doctest\] test cases:\s*(\d+)\s*\|\s*(\d+) passed\s*\|\s*(\d+) failed')
SKIP_LINE = re.compile(r'^SKIP: .*$', re.M)


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else 'no reason given'


def count(build, record):
    """(passed, failed, [skip reasons], [failure names]) of one test."""
    name = f"{build}: {record['name']}"
    text = record.get('stdout') or ''
    # A skip marker counts; of one that is printed by many cases, each reason once.
    skips = [f'{name}: {line[6:]}' for line in dict.fromkeys(SKIP_LINE.findall(text))]
    result = record['result']
    if result == 'SKIP':
        return 0, 0, skips or [f'{name}: {last_line(text)}'], []
    good = result in ('OK', 'EXPECTEDFAIL')
    passed = failed = 0
    for match in CASES.finditer(text):
        passed += int(match.group(2))
        failed += int(match.group(3))
    if passed + failed == 0:
        passed, failed = (1, 0) if good else (0, 1)
    elif not good and failed == 0:
        failed = 1  # Every case that ended passed, but the program did not: a crash or a time-out.
    elif good and failed > 0:
        good = False
    return passed, failed, skips, [] if good else [f"{name}: {result}"]


def main():
    passed = failed = 0
    skips, failures = [], []
    for argument in sys.argv[1:]:
        build, path = argument.split('=', 1)
        try:
            lines = open(path, encoding='utf-8').read().splitlines()
        except OSError as error:
            failed += 1
            failures.append(f'{build}: no test log ({error.strerror})')
            continue
        for line in lines:
            p, f, s, names = count(build, json.loads(line))
            passed, failed = passed + p, failed + f
            skips += s
            failures += names
    for reason in skips:
        print(f'skipped: {reason}')
    for name in failures:
        print(f'FAILED: {name}')
    print(f'{passed} passed, {failed} failed' + (f', {len(skips)} skipped' if skips else ''))
    return 1 if failed or passed == 0 else 0


if __name__ == '__main__':
    sys.exit(main())
