/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Included before every file. glibc 2.34 moved these functions into libc under a new version; by their old version the
 * library loads in a container with an older glibc than the machine it was built on.
 */
#if defined(__x86_64__)
#define OLD(name) __asm__(".symver " #name ", " #name "@GLIBC_2.2.5");
#else
#define OLD(name) __asm__(".symver " #name ", " #name "@GLIBC_2.17");
#endif
OLD(dladdr)
OLD(dlclose)
OLD(dlopen)
OLD(dlsym)
OLD(glob)
OLD(pthread_create)
OLD(pthread_detach)
OLD(pthread_mutex_trylock)
OLD(pthread_sigmask)
#if defined(__x86_64__)
__asm__(".symver dlinfo, dlinfo@GLIBC_2.3.3");
#else
OLD(dlinfo)
#endif
#undef OLD
