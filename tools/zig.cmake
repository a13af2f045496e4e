# Compile for another machine and an old glibc, with the clang of zig and the libstdc++ of Debian.
#
# zig has glibc of every version since 2.17, so that a module built on a new system loads on an old one. Its own C++
# library would be linked into each module; torch's libstdc++ is the right one, because thinwire/engine/ending.cpp sets
# the handler of std::terminate for the whole process.
#
# In the environment: TW_ARCH (x86_64 or aarch64), TW_ZIG (the program), TW_STDCXX (a folder with include/ and lib/).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR $ENV{TW_ARCH})
set(CMAKE_CXX_COMPILER $ENV{TW_ZIG} cc -target $ENV{TW_ARCH}-linux-gnu.2.28)

file(GLOB headers $ENV{TW_STDCXX}/include/c++/*)
set(CMAKE_CXX_FLAGS_INIT "-nostdinc++ -I${headers} -I${headers}/$ENV{TW_ARCH}-linux-gnu")
set(CMAKE_CXX_STANDARD_LIBRARIES "$ENV{TW_STDCXX}/lib/libstdc++.so.6 $ENV{TW_STDCXX}/lib/libgcc_s.so.1")
if(CMAKE_SYSTEM_PROCESSOR STREQUAL x86_64)  # __builtin_cpu_supports asks it what the processor has; zig's runtime does not know
  string(APPEND CMAKE_CXX_STANDARD_LIBRARIES " $ENV{TW_STDCXX}/lib/libgcc.a")
endif()
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,--allow-shlib-undefined")  # Debian's libstdc++ wants a newer glibc; users' own is used
set(CMAKE_SHARED_LINKER_FLAGS_INIT "-Wl,--allow-shlib-undefined")
set(CMAKE_MODULE_LINKER_FLAGS_INIT "-Wl,--allow-shlib-undefined")
