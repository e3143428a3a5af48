#!/usr/bin/env python3
"""Reads every #include of the tree against the table of layers: who may include whom, and which folder may
see which library. Usage: include_layers.py ROOT. Prints one line per breach; exit status 1 if there is one."""
import re
import sys

import tree

# Folder -> the folders it may include besides itself. The longest matching prefix of a path decides.
LAYERS = {
    'include/kvrail/base': [],
    'include/kvrail': ['include/kvrail/base'],
    'mempool': ['include/kvrail'],
    'codec': ['include/kvrail'],
    'transport': ['include/kvrail', 'mempool'],
    'gpu': ['include/kvrail', 'mempool', 'codec'],
    'scheduler': ['include/kvrail'],
    'engine': ['include/kvrail', 'mempool', 'codec', 'transport', 'gpu', 'scheduler'],
    'perf': ['include/kvrail', 'mempool', 'codec', 'transport', 'gpu', 'scheduler', 'engine'],
    'tests': ['include/kvrail', 'mempool', 'codec', 'transport', 'gpu', 'scheduler', 'engine', 'perf'],
    'docs': ['include/kvrail'],  # Examples see what a user sees.
}

# One folder per transport behind one contract: they never see each other.
TRANSPORTS = ['shm', 'tcp', 'verbs', 'ucx', 'dpdk', 'sim']

# Library header prefix -> the folders that may see it. What is not named here is the standard library,
# the system or a library that every folder may use.
LIBRARIES = {
    'infiniband/': ['transport/verbs', 'mempool/verbs', 'perf', 'tests'],
    'rdma/': ['transport/verbs', 'tests'],
    'ucp/': ['transport/ucx', 'perf'],
    'uct/': ['transport/ucx', 'perf'],
    'ucs/': ['transport/ucx', 'perf'],
    'rte_': ['transport/dpdk'],
    'cuda': ['gpu'],
    'nvml': ['gpu'],
    'liburing': ['transport', 'engine', 'perf', 'tests'],
    'hwy/': ['codec', 'perf', 'tests'],
    'Eigen/': ['perf'],
    'yaml-cpp/': ['engine', 'perf'],
    'lzma': ['perf', 'tests'],
    'openssl/': ['transport', 'engine', 'tests', 'perf'],
    'numa': ['mempool', 'engine', 'perf', 'tests'],
    # Slow to compile and not for the data path.
    'spdlog/': ['engine', 'perf', 'tests'],
    'fmt/': ['engine', 'perf', 'tests'],
    'CLI/': ['engine', 'perf', 'tests'],
    'toml++/': ['engine', 'perf', 'tests'],
    'nlohmann/': ['engine', 'perf', 'tests'],
    'doctest/': ['tests'],
    'benchmark/': ['perf', 'tests'],
    'boost/': ['include/kvrail/base', 'mempool', 'transport', 'scheduler', 'engine', 'perf', 'tests'],
}

# The scheduler decides; it neither reads a clock, nor waits, nor calls the system.
SCHEDULER_BANNED = {'thread', 'mutex', 'shared_mutex', 'condition_variable', 'future', 'chrono', 'ctime',
                    'random', 'fstream', 'iostream', 'cstdio', 'time.h', 'unistd.h', 'stdio.h', 'semaphore',
                    'latch', 'barrier', 'poll.h', 'pthread.h', 'sched.h', 'fcntl.h'}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)

# Headers that the build writes into its root.
GENERATED = {'kvrail_features.h'}


def layer_of(path):
    best = None
    for layer in LAYERS:
        if path.startswith(layer + '/') and (best is None or len(layer) > len(best)):
            best = layer
    return best


def inside(path, folders):
    return any(path.startswith(folder + '/') for folder in folders)


def transport_of(path):
    parts = path.split('/')
    return parts[1] if len(parts) > 2 and parts[0] == 'transport' and parts[1] in TRANSPORTS else None


def resolve(known, includer, target):
    """The file that a quoted include names, or None."""
    for candidate in (target, 'include/' + target):
        if candidate in known:
            return candidate
    return None


def check_project_include(known, path, layer, target):
    resolved = resolve(known, path, target)
    if target in GENERATED:
        return None
    if '../' in target:
        return 'includes are written from the root, without "../"'
    if resolved is None:
        return 'no such file from the root (or from include/)'
    other = layer_of(resolved)
    if other is None:
        return 'that file is in no layer'
    mine, theirs = transport_of(path), transport_of(resolved)
    if mine and theirs and mine != theirs:
        return f'transport/{mine} may not include transport/{theirs}'
    if other == layer or inside(resolved, LAYERS[layer]):
        return None
    return f'{layer} may not include {other}'


def check_library_include(path, layer, target):
    for prefix, folders in LIBRARIES.items():
        if target.startswith(prefix) and not inside(path, folders):
            return f'{prefix} belongs to ' + ', '.join(folders)
    if layer == 'scheduler' and (target in SCHEDULER_BANNED or target.startswith('sys/')):
        return 'the scheduler has no clock, thread or system call'
    return None


def check_tree(root):
    """All breaches as 'path:line: include: why'."""
    paths = tree.files(root, tree.SOURCE_SUFFIXES)
    known = set(paths)
    breaches = []
    for path in paths:
        layer = layer_of(path)
        if layer is None:
            breaches.append(f'{path}:1: is in no layer of the table')
            continue
        text = tree.without_comments(tree.read(root, path))
        for match in INCLUDE.finditer(text):
            quoted, target = match.group(1) == '"', match.group(2)
            project = quoted or target.startswith('kvrail/')
            why = (check_project_include(known, path, layer, target) if project
                   else check_library_include(path, layer, target))
            if project and not why and target.startswith(tuple(LIBRARIES)):
                why = check_library_include(path, layer, target)
            if why:
                line = text.count('\n', 0, match.start(1)) + 1
                breaches.append(f'{path}:{line}: {target}: {why}')
    return breaches, len(paths)


def main():
    breaches, count = check_tree(sys.argv[1])
    for breach in breaches:
        print(breach)
    print(f'{count} files, {len(breaches)} breaches')
    if count == 0:
        print('no source file found: wrong root?')
    return 1 if breaches or count == 0 else 0


if __name__ == '__main__':
    sys.exit(main())
