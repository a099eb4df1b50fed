#!/bin/sh
# Builds libsmelt, the C runtime of smelt, and installs it with its headers:
#
#     sh build.sh PREFIX                                                     for this machine, with cc
#     CC="zig cc -target x86_64-windows-gnu" AR="zig ar" sh build.sh PREFIX  for another, with a cross compiler
#
# PREFIX gets include/, lib/ with the shared and the static library, and files for pkg-config and CMake. CFLAGS adds flags.
set -e
prefix=${1:?"usage: sh build.sh PREFIX"}
CC=${CC:-cc} AR=${AR:-ar}
here=$(cd "$(dirname "$0")" && pwd)
[ -d "$here/csrc" ] || here=$here/../../src/smelt # in smelt's repository
mkdir -p "$prefix/include" "$prefix/lib/pkgconfig" "$prefix/lib/cmake/smelt"
prefix=$(cd "$prefix" && pwd)
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT

compile="$CC -O2 -std=c11 -fvisibility=hidden -ffunction-sections -fdata-sections $CFLAGS"
machine=$($CC -dumpmachine 2>/dev/null) || machine=$CC # zig does not answer for targets with a version of glibc
case $machine in *windows* | *mingw*) ;; *) compile="$compile -fPIC" ;; esac
for source in "$here"/csrc/deploy/*.c "$here"/csrc/deploy/*/*.c "$here"/csrc/executor/*.c "$here"/csrc/executor/*/*.c; do
    name=${source#"$here"/csrc/}
    $compile -I"$here/csrc" -I"$here/include" -c "$source" -o "$objects/$(echo "${name%.c}" | tr / -).o"
done

cd "$objects"
case $machine in
*windows* | *mingw*)
    mkdir -p "$prefix/bin"
    $CC $CFLAGS -shared -s ./*.o -o "$prefix/bin/smelt.dll" "-Wl,--out-implib,$prefix/lib/smelt.lib" -lpthread
    ;;
*darwin* | *macos*)
    $CC $CFLAGS -dynamiclib ./*.o -o "$prefix/lib/libsmelt.1.dylib" -Wl,-install_name,@rpath/libsmelt.1.dylib
    ln -sf libsmelt.1.dylib "$prefix/lib/libsmelt.dylib"
    ;;
*)
    $CC $CFLAGS -shared -Wl,-s -Wl,--gc-sections -Wl,--no-undefined -Wl,-soname,libsmelt.so.1 ./*.o -o "$prefix/lib/libsmelt.so.1" \
        -lm -lpthread -ldl
    ln -sf libsmelt.so.1 "$prefix/lib/libsmelt.so"
    ;;
esac
rm -f "$prefix/lib/libsmelt.a"
$AR rcs "$prefix/lib/libsmelt.a" ./*.o
cp "$here"/include/smelt.h "$here"/include/smelt.hpp "$prefix/include"
cp "$here"/lib/pkgconfig/smelt.pc "$prefix/lib/pkgconfig"
cp "$here"/lib/cmake/smelt/*.cmake "$prefix/lib/cmake/smelt"
echo "libsmelt for $machine: $prefix"
