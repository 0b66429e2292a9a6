# Sourced by the scripts that build for a processor: sets the variables of cargo, setuptools and the compilers for `$processor`, which is
# x86_64 or aarch64. Another processor than the machine's needs Debian's g++-aarch64-linux-gnu, and qemu-user-static, which runs what
# was built.

export CARGO_BUILD_TARGET=$processor-unknown-linux-gnu
if [ "$processor" != "$(uname -m)" ]; then
  # The prefix of the tools, as other projects call it.
  export CROSS_COMPILE=$processor-linux-gnu-
  # zig compiles the C parts, but has no libstdc++, which the C++ parts for PyTorch need.
  export CXX=${CROSS_COMPILE}g++
  # The name that setuptools gives a wheel.
  export _PYTHON_HOST_PLATFORM=linux-$processor
  export EMULATOR="qemu-$processor-static -L /usr/$processor-linux-gnu"
fi
