#!/usr/bin/env python3
"""What docs/embedding.md and docs/examples show builds outside this tree, from the headers that get installed and
the library alone, and runs. Usage: embed_test.py LIBRARY DOCS CC CXX HEADER... , headers with their paths."""
import os
import re
import shutil
import subprocess
import sys
import tempfile


def stage(headers, folder):
    for header in headers:
        below = header[header.rindex('include/kvrail/') + len('include/'):]
        target = os.path.join(folder, below)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy(header, target)


def least_program(docs, folder):
    with open(os.path.join(docs, 'embedding.md'), encoding='utf-8') as page:
        blocks = re.findall(r'^```c\n(.*?)^```', page.read(), re.M | re.S)
    if len(blocks) != 1:
        sys.exit(f'embedding.md has {len(blocks)} programs in C')
    path = os.path.join(folder, 'least.c')
    with open(path, 'w', encoding='utf-8') as file:
        # Its socket is the default one, where an engine may well listen.
        file.write(blocks[0].replace('options.name =', 'options.socket_path = "/nonexistent/kvrail"; options.name ='))
    return path


def build(compiler, options, source, library, include, program):
    command = [*compiler.split(), *options, '-Wall', '-Wextra', '-Werror', '-I', include, source, library,
               f'-Wl,-rpath,{os.path.dirname(library)}', '-o', program]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f'{" ".join(command)}\n{done.stderr}')


def main():
    library, docs, cc, cxx, *headers = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        include = os.path.join(folder, 'include')
        stage(headers, include)
        c, cpp = ['-std=c11'], ['-std=c++20']
        cases = [(cc, c, least_program(docs, folder)), (cc, c, os.path.join(docs, 'examples/handover.c')),
                 (cxx, cpp, os.path.join(docs, 'examples/handover.cc'))]
        for compiler, options, source in cases:
            program = os.path.join(folder, 'program')
            build(compiler, options, source, library, include, program)
            done = subprocess.run([program, '/nonexistent/kvrail'], capture_output=True, text=True)
            if done.returncode != 1 or 'no engine listens at' not in done.stdout + done.stderr:
                sys.exit(f'{source}: {done.returncode}: {done.stdout}{done.stderr}')
            print(f'{os.path.basename(source)}: built and run')


main()
