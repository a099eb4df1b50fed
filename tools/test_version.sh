#!/bin/sh
# The tests that need no torch (the C part and the reading of bytecode), under one version of Python:
#     tools/test_version.sh 3.13 [arguments for pytest]
# Says so and goes on where that Python is not to be found, in PATH or among pyenv's.
set -e
version=$1
shift
for python in "python$version" "$HOME"/.pyenv/versions/"$version".*/bin/python ""; do
    if [ -z "$python" ] || "$python" -c "" 2>/dev/null; then break; fi
done
if [ -z "$python" ]; then
    echo "smelt: there is no Python $version here; its tests are left out"
    exit 0
fi
home=build/python-$version
if [ ! -e "$home/ready" ]; then
    "$python" -m venv "$home"
    "$home/bin/python" -m pip --disable-pip-version-check install -qq pytest setuptools
    touch "$home/ready"
fi
echo "smelt: $("$home/bin/python" --version), without torch"
"$home/bin/python" setup.py -q build_ext --inplace --build-temp "$home/objects"
PYTHONPATH=src "$home/bin/python" -m pytest -q -m "slow or not slow" tests/native tests/versions "$@"
