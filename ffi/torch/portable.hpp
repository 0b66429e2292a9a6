/*
 * Keeps a file that is compiled with a new compiler free of what older systems do not have, so that it runs with glibc 2.28
 * and the libstdc++ of GCC 8. The compiler includes it first for the files of the wheel (python/build_pieces.py), and for
 * none that is compiled where it runs.
 */
#pragma once

/* glibc 2.32 tells libstdc++'s shared pointers whether the process has one thread. Here the process has many. */
#define __libc_single_threaded cachalot_single_threaded
extern "C" {
__attribute__((weak, visibility("hidden"))) char cachalot_single_threaded = 0;
}

#include <new>
#include <sstream>

/* Functions that only libstdc++ of GCC 9 and later, or 11 and later, has. */
namespace std {
__attribute__((weak)) void __throw_bad_array_new_length() {
  throw bad_array_new_length();
}
}  // namespace std
template std::basic_ostringstream<char>::basic_ostringstream();
#if _GLIBCXX_USE_CXX11_ABI
template std::string std::basic_stringbuf<char>::str() const &;
template std::string std::basic_stringbuf<char>::str() &&;
#endif

/* glibc 2.34 has these in another library, under another version. */
#if defined(__x86_64__)
#define CACHALOT_GLIBC "GLIBC_2.2.5"
#else
#define CACHALOT_GLIBC "GLIBC_2.17"
#endif
__asm__(".symver dlopen, dlopen@" CACHALOT_GLIBC);
__asm__(".symver dlsym, dlsym@" CACHALOT_GLIBC);
__asm__(".symver dlerror, dlerror@" CACHALOT_GLIBC);
