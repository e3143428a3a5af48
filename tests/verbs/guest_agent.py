#!/usr/bin/env python3
"""Runs in the second guest of `scripts/rdma-vm --two` what the first one asks for: each line that comes by TCP is
a shell command; the answer is a line with its exit status and the first line of its output. `end` ends it.
Usage: guest_agent.py ADDRESS PORT"""
import socket
import subprocess
import sys


def main():
    listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile('rw') as lines:
            command = lines.readline().strip()
            if command == 'end':
                lines.write('0\n')
                return
            done = subprocess.run(['bash', '-c', command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                                  check=False)
            lines.write(f'{done.returncode} {done.stdout.partition(chr(10))[0]}\n')


if __name__ == '__main__':
    main()
