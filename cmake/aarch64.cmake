# Cross build for 64-bit Arm on Debian: static programs that qemu-user runs (./dev test --all).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)

# One program holds every Arm instruction set and picks by the processor it meets: plain NEON on the first, SVE2 on the
# second.
set(EJK_EMULATED_CPUS "neon=cortex-a72;sve2=max")

# The header-only packages are the host's; their CMake files stand in the host's library folder.
file(GLOB fmt_DIR /usr/lib/*/cmake/fmt)
