#!/usr/bin/env python3
"""Tests of the lint tests: each rule finds its breach in a small made-up tree, and passes the clean one."""
import os
import tempfile
import unittest

import include_layers
import reliability
import tidy
import tree


def make_tree(folder, contents):
    for path, text in contents.items():
        full = os.path.join(folder, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, 'w', encoding='utf-8') as file:
            file.write(text)


CLEAN = {
    'include/kvrail/base/status.h': '#include <cstdint>\n',
    'include/kvrail/types.h': '#include "kvrail/base/status.h"\n',
    'mempool/arena.h': '#include <numa.h>\n#include "kvrail/types.h"\n',
    'transport/transport.h': '#include "mempool/arena.h"\n',
    'transport/tcp/lane.cc': '#include "transport/transport.h"\n#include "kvrail_features.h"\n',
    'transport/shm/lane.h': '\n',
    'scheduler/scheduler.h': '#include <cstdint>\n',
    'engine/engine.cc': '#include "scheduler/scheduler.h"\n#include "transport/tcp/lane.h"\n',
    'transport/tcp/lane.h': '\n',
}


class IncludeLayers(unittest.TestCase):
    def breaches(self, extra):
        with tempfile.TemporaryDirectory() as folder:
            make_tree(folder, {**CLEAN, **extra})
            return include_layers.check_tree(folder)[0]

    def test_clean_tree_passes(self):
        self.assertEqual(self.breaches({}), [])

    def test_each_breach_is_found_at_its_line(self):
        cases = {
            'include/kvrail/base/x.h': '\n#include "kvrail/types.h"\n',
            'include/kvrail/x.h': '\n#include "mempool/arena.h"\n',
            'mempool/x.h': '\n#include "transport/transport.h"\n',
            'codec/x.h': '\n#include "mempool/arena.h"\n',
            'transport/x.h': '\n#include "scheduler/scheduler.h"\n',
            'transport/tcp/x.h': '\n#include "transport/shm/lane.h"\n',
            'scheduler/x.h': '\n#include <chrono>\n',
            'scheduler/y.h': '\n#include <sys/mman.h>\n',
            'gpu/x.h': '\n#include "transport/transport.h"\n',
            'engine/x.h': '\n#include "tests/support/x.h"\n',
            'mempool/y.h': '\n#include <spdlog/spdlog.h>\n',
            'engine/y.h': '\n#include <infiniband/verbs.h>\n',
            'engine/z.h': '\n#include "../mempool/arena.h"\n',
            'codec/z.h': '\n#include "no/such/file.h"\n',
            'codec/w.h': '\n#include <kvrail/nothing.h>\n',
        }
        for path, text in cases.items():
            with self.subTest(path=path, text=text):
                extra = {path: text, 'tests/support/x.h': '\n'}
                found = self.breaches(extra)
                self.assertEqual(len(found), 1, found)
                self.assertTrue(found[0].startswith(path + ':2: '), found)

    def test_source_outside_all_layers_is_found(self):
        self.assertEqual(len(self.breaches({'elsewhere/x.cc': '\n'})), 1)

    def test_comments_are_not_includes(self):
        self.assertEqual(self.breaches({'codec/x.h': '// #include "mempool/arena.h"\n/*\n#include "x"\n*/\n'}),
                         [])


class Tidy(unittest.TestCase):
    def breaches(self, contents):
        with tempfile.TemporaryDirectory() as folder:
            make_tree(folder, {'codec/README.md': '# codec\n', 'engine/README.md': '', **contents})
            return tidy.check_tree(folder)[0]

    def test_clean_tree_passes(self):
        body = 'int f() {\n' + '  g();\n' * 60 + '}\n'
        self.assertEqual(self.breaches({'codec/a.cc': body, 'README.md': '[codec](codec/README.md#x)\n'}), [])

    def test_each_rule_finds_its_breach(self):
        cases = {
            'codec/long.cc': '//\n' * 601,
            'codec/sleep.cc': 'std::this_thread::sleep_for(x);\n',
            'codec/usleep.cc': 'usleep(5);\n',
            'codec/env.cc': 'auto x = std::getenv("X");\n',
            'codec/assert.cc': 'assert(x);\n',
            'codec/function.cc': 'int f(int a,\n      int b) {\n' + '  g();\n' * 70 + '}\n',
            'codec/path.md': 'see /home/somebody/x\n',
            'codec/link.md': '\n[x](nothing.md)\n',
            'gpu/no_readme.cc': '\n',
            'scripts/x': '#!/bin/sh\n',
        }
        for path, text in cases.items():
            with self.subTest(path=path):
                extra = {path: text}
                if path.startswith('scripts/'):
                    extra['scripts/README.md'] = ''
                found = self.breaches(extra)
                self.assertEqual(len(found), 1, found)
                self.assertTrue(found[0].startswith(path.split('/')[0]), found)

    def test_rules_know_their_exceptions(self):
        self.assertEqual(self.breaches({
            'engine/daemon/load.cc': 'std::getenv("X");\n',
            'engine/daemon/README.md': '',
            'codec/prose.cc': '// usleep(5) would be wrong here, and so would assert(x)\nstatic_assert(true);\n',
            'codec/code.md': '```\n[x](nothing.md)\n```\n',
        }), [])


class Reliability(unittest.TestCase):
    CASES = ('TEST_CASE("one") {}\nTEST_CASE(\n    "two, in "\n    "parts") {}\n'
             'TEST_CASE_TEMPLATE("three", T, int) {}\n')

    def breaches(self, rows, numbered=True):
        head = '| fault | what | shown by |\n|---|---|---|\n'
        numbers = ''.join(f'| {n} x | y | [t](../tests/t.cc): `one` |\n' for n in reliability.BAD_INPUTS)
        with tempfile.TemporaryDirectory() as folder:
            make_tree(folder, {'tests/t.cc': self.CASES, 'tests/sim.cc': 'int main() {}\n',
                               'tests/l.py': 'def test_x(self):\n',
                               'docs/reliability.md': head + (numbers if numbered else '') + rows})
            return reliability.check_page(folder)[0]

    def test_tests_that_exist_pass(self):
        self.assertEqual(self.breaches('| f | e | [t](../tests/t.cc): `one`, `two, in parts`<br>[t](../tests/t.cc): '
                                       '`three` |\n| f | e | [sim](../tests/sim.cc) |\n'
                                       '| f | e | [l](../tests/l.py): `test_x` |\n'), [])

    def test_each_breach_is_found(self):
        for row in ('| f | e | [t](../tests/t.cc): `gone` |\n', '| f | e | [t](../tests/t.cc): `one`, `gone` |\n',
                    '| f | e | [t](../tests/none.cc): `one` |\n', '| f | e | [t](../tests/t.cc) |\n',
                    '| f | e | nothing |\n', '| f | [t](../tests/t.cc): `one` |\n'):
            with self.subTest(row=row):
                self.assertEqual(len(self.breaches(row)), 1)

    def test_every_bad_input_has_a_row(self):
        self.assertEqual(len(self.breaches('| f | e | [sim](../tests/sim.cc) |\n', numbered=False)),
                         len(reliability.BAD_INPUTS))


class Tree(unittest.TestCase):
    def test_comment_stripping_keeps_lines_and_strings(self):
        text = 'a // b\n/* c\n d */ e "// kept" \'"\' // f\n'
        stripped = tree.without_comments(text)
        self.assertEqual(stripped.count('\n'), text.count('\n'))
        self.assertIn('"// kept"', stripped)
        for gone in ('b', 'c\n', ' f'):
            self.assertNotIn(gone, stripped)


if __name__ == '__main__':
    unittest.main(argv=['lint_test'], verbosity=1)
