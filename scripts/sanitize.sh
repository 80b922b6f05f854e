#!/usr/bin/env bash
# The native code under sanitizers (`make sanitize` calls this): its Python tests with AddressSanitizer and
# UndefinedBehaviorSanitizer, the thread pool alone with ThreadSanitizer. Wants GCC and an installed environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-.venv/bin/python}
CXX=${CXX:-g++}
BUILD=build/sanitize
SOURCES=src/jitney/kernels/native/csrc

echo "== ThreadSanitizer: the thread pool"
mkdir -p "$BUILD"
"$CXX" -std=c++20 -O1 -g -fsanitize=thread -I"$SOURCES" tests/native/thread_pool_test.cpp "$SOURCES/thread_pool.cpp" \
    -o "$BUILD/thread_pool_test" -pthread
"$BUILD/thread_pool_test"

echo "== AddressSanitizer and UndefinedBehaviorSanitizer: the kernels"
cmake -S . -B "$BUILD/asan" -DCMAKE_CXX_COMPILER="$CXX" -DJITNEY_SANITIZE=address,undefined > /dev/null
cmake --build "$BUILD/asan" --parallel 2 > /dev/null
LD_PRELOAD="$("$CXX" -print-file-name=libasan.so) $("$CXX" -print-file-name=libubsan.so)" \
    ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
    JITNEY_NATIVE_LIBRARY="$PWD/$BUILD/asan/libjitney_native.so" \
    "$PYTHON" -m pytest tests/models/decoder/test_native.py --timeout 0 -p no:randomly "$@"
