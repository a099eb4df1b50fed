#!/bin/sh
# What some tests need beside .venv, so that none is left out for want of it:
#     tools/test_deps.sh debian
#     tools/test_deps.sh .venv/bin/python
# The first installs Debian packages (a browser to open the report with, node to run its scripts and WebAssembly, qemu to
# run code for other processors, Mesa's Vulkan for processors and the validator of SPIR-V) where this is Debian and root
# asks; the second smelt itself, the frameworks of docs/frameworks.md, libraries whose programs are captured, CMake and zig,
# which compiles C for other systems, and ptxas, which assembles code for GPUs. What cannot be fetched is told, and the tests that need it are left out.
python=$1
packages=""
if [ "$python" = debian ]; then
    command -v node >/dev/null || packages="$packages nodejs"
    command -v qemu-riscv64-static >/dev/null || command -v qemu-riscv64 >/dev/null || packages="$packages qemu-user-static"
    command -v pkg-config >/dev/null || packages="$packages pkg-config"
    command -v npm >/dev/null || packages="$packages npm"
    command -v spirv-val >/dev/null || packages="$packages spirv-tools"
    ls /usr/share/vulkan/icd.d/lvp_icd* >/dev/null 2>&1 || packages="$packages libvulkan1 mesa-vulkan-drivers"
    command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null ||
        packages="$packages chromium"
    if [ -n "$packages" ]; then
        if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
            echo "smelt: missing here:$packages (no apt-get, or not root); the tests that need it are left out"
        else
            echo "smelt: installing$packages"
            { DEBIAN_FRONTEND=noninteractive timeout 300 apt-get -qq update &&
                DEBIAN_FRONTEND=noninteractive timeout 600 apt-get -qq install -y --no-install-recommends $packages; } \
                >/dev/null 2>&1 ||
                echo "smelt: cannot install$packages; the tests that need it are left out"
        fi
    fi
    exit 0
fi
missing=""
"$python" -c "import accelerate, diffusers, lightning" 2>/dev/null || missing="$missing frameworks"
"$python" -c "import einops" 2>/dev/null || missing="$missing libraries"
"$python" -c "import cmake, ziglang" 2>/dev/null || missing="$missing test-c"
"$python" -c "import glob, nvidia, sys; sys.exit(not glob.glob(nvidia.__path__[0] + '/*/bin/ptxas'))" 2>/dev/null ||
    command -v ptxas >/dev/null || missing="$missing test-gpu"
install() {
    timeout 900 "$python" -m pip --disable-pip-version-check install -qq --editable ".[$1]"
}
if [ -n "$missing" ]; then
    # All at once: each run of pip builds smelt.
    echo "smelt: building and installing smelt, the development tools, and$missing"
    if install "dev$(printf ',%s' $missing)"; then
        touch "$(dirname "$python")/../smelt" "$(dirname "$python")/../dev"
    else
        for extra in $missing; do
            install "$extra" || echo "smelt: cannot install $extra; the tests that need it are left out"
        done
    fi
fi
exit 0
