#!/usr/bin/env python3
"""Names ninja targets of a Meson build folder, one a line.

targets.py BUILD --programs           executables and shared libraries outside tests/
targets.py BUILD --suites unit,stress what the tests of these suites need
"""
import json
import os
import subprocess
import sys


def introspect(build, what):
    return json.loads(subprocess.run(['meson', 'introspect', build, what], check=True,
                                     capture_output=True, text=True).stdout)


def outputs(build, target):
    return [os.path.relpath(name, build) for name in target['filename']]


def main():
    build, mode = os.path.realpath(sys.argv[1]), sys.argv[2]
    targets = introspect(build, '--targets')
    chosen = []
    if mode == '--programs':
        for target in targets:
            if target['type'] in ('executable', 'shared library'):
                chosen += [name for name in outputs(build, target) if not name.startswith('tests/')]
    else:
        suites = set(sys.argv[3].split(','))
        wanted = set()
        for test in introspect(build, '--tests'):
            if suites & {suite.split(':')[-1] for suite in test['suite']}:
                wanted.update(test['depends'])
        for target in targets:
            if target['id'] in wanted:
                chosen += outputs(build, target)
    print('\n'.join(sorted(set(chosen))))


if __name__ == '__main__':
    main()
