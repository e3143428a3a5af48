#!/bin/sh
# Prints the folders of tests that Meson enters, relative to this one.
cd "$(dirname "$0")" && for file in unit/*/meson.build [!u]*/meson.build; do
  if [ -f "$file" ]; then
    dirname "$file"
  fi
done
