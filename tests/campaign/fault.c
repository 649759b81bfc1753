/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded into a program: the CONVOY_FAULT_AT-th call of a kind fails, counted from main on.
 *
 *   CONVOY_FAULT=malloc   allocations by the program, libconvoy, libpng and operator new; NULL
 *   CONVOY_FAULT=io       open, fopen, mkstemp, pread, read, fwrite, fflush, fsync, rename, stat,
 *                         access, mkdir, readlink, fchmod, fchown and the like; EIO. And
 *                         pthread_create; EAGAIN
 *   CONVOY_FAULT_FILE     gets the stack of the call that failed: a number, the same in each run
 *   CONVOY_FAULT_TRACE    gets the stack of every call, in their order, at the end of the process
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>
#include <unwind.h>

static int active;        /* From main on. */
static int wanted_malloc; /* Else I/O. */
static long fault_at;
static int tracing;
static atomic_long calls;
static __thread int inside;
static __thread int loading; /* Inside dlopen. */

/* Where an address lies in its library, which is loaded elsewhere in each run. NOTE: dladdr searches
 * a library's symbols one by one; callers are few and come again. */
static uint64_t place_of(uintptr_t address) {
  static struct { atomic_uintptr_t address, base; } known[16384];
  const size_t slot = (address ^ address >> 14) % 16384;
  if (atomic_load(&known[slot].address) == address) {
    return address - atomic_load(&known[slot].base);
  }
  Dl_info info;
  const int found = dladdr((void*)address, &info) != 0;
  const uintptr_t base = found ? (uintptr_t)info.dli_fbase : address;
  /* Another thread may be at the same slot: what it reads must never be half of each. */
  static atomic_flag writing = ATOMIC_FLAG_INIT;
  if (!atomic_flag_test_and_set(&writing)) {
    if (atomic_load(&known[slot].address) == 0) {
      atomic_store(&known[slot].base, base);
      atomic_store(&known[slot].address, address);
    }
    atomic_flag_clear(&writing);
  }
  return address - base;
}

static _Unwind_Reason_Code add_frame(struct _Unwind_Context* context, void* into) {
  uint64_t* const hash = into;
  *hash = (*hash ^ place_of(_Unwind_GetIP(context))) * 0x9e3779b97f4a7c15u;
  *hash ^= *hash >> 29;
  return _URC_NO_REASON;
}

/* A number that stands for the calls that led here. */
static uint64_t stack_of_caller(void) {
  uint64_t hash = 0xcbf29ce484222325u;
  _Unwind_Backtrace(add_frame, &hash);
  return hash;
}

static void write_stacks(const char* path, const uint64_t* stacks, size_t count) {
  int (*real)(const char*, int, ...) = (int (*)(const char*, int, ...))dlsym(RTLD_NEXT, "open");
  const int descriptor = real(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (descriptor < 0) return;
  ssize_t (*put)(int, const void*, size_t) =
      (ssize_t(*)(int, const void*, size_t))dlsym(RTLD_NEXT, "write");
  const size_t bytes = count * sizeof *stacks;
  for (size_t done = 0; done < bytes;) {
    const ssize_t more = put(descriptor, (const char*)stacks + done, bytes - done);
    if (more <= 0) break;
    done += (size_t)more;
  }
  close(descriptor);
}

static void tell(uint64_t stack) {
  const char* const path = getenv("CONVOY_FAULT_FILE");
  if (path != NULL) write_stacks(path, &stack, 1);
}

enum { kTraced = 1 << 18 };
static uint64_t traced[kTraced];

__attribute__((destructor)) static void write_trace(void) {
  const char* const path = getenv("CONVOY_FAULT_TRACE");
  const long count = atomic_load(&calls);
  if (path != NULL) write_stacks(path, traced, (size_t)(count < kTraced ? count : kTraced));
}

static int is_ours(void* caller) {
  Dl_info info;
  if (dladdr(caller, &info) == 0 || info.dli_fname == NULL) return 0;
  const char* const name = strrchr(info.dli_fname, '/');
  const char* const file = name == NULL ? info.dli_fname : name + 1;
  return strncmp(file, "convoy", 6) == 0 || strncmp(file, "libconvoy", 9) == 0 ||
         strncmp(file, "libpng", 6) == 0 || strncmp(file, "libstdc++", 9) == 0;
}

/* NOTE: dladdr searches a library's symbols one by one; callers are few and come again. */
static int ours(void* caller) {
  static atomic_uintptr_t known[4096]; /* Twice the address, and the answer. */
  const uintptr_t address = (uintptr_t)caller;
  atomic_uintptr_t* const slot = &known[(address ^ address >> 12) % 4096];
  const uintptr_t found = atomic_load(slot);
  if (found >> 1 == address) return (int)(found & 1);
  const int result = is_ours(caller);
  atomic_store(slot, address << 1 | (uintptr_t)result);
  return result;
}

/* NOTE: operator new and what libraries allocate for themselves look alike from here: oneDNN's and
 * libgomp's own calls of malloc are left alone, which end the process by themselves. */
static int fails(int is_malloc, void* caller) {
  if (!active || is_malloc != wanted_malloc || inside || loading) return 0;
  inside = 1;
  int result = 0;
  if (!is_malloc || ours(caller)) {
    const long number = atomic_fetch_add(&calls, 1);
    result = number + 1 == fault_at;
    if (result || tracing) {
      /* NOTE: both by one call, for its own address is of the stack. */
      const uint64_t stack = stack_of_caller();
      if (result) tell(stack);
      if (tracing && number < kTraced) traced[number] = stack;
    }
  }
  inside = 0;
  return result;
}

#define REAL(type, name, ...)       \
  static type (*real)(__VA_ARGS__); \
  if (real == NULL) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

#ifdef CONVOY_FAULT_SANITIZED
/* A sanitizer's runtime comes after this library and makes the memory. Its operator new does not
 * call malloc. */
#define NEXT_MALLOC(type, name, ...) REAL(type, name, __VA_ARGS__)
#else
#define NEXT_MALLOC(type, name, ...)      \
  extern type __libc_##name(__VA_ARGS__); \
  type (*const real)(__VA_ARGS__) = __libc_##name
#endif
#define FAIL_MALLOC() \
  if (fails(1, __builtin_return_address(0))) return errno = ENOMEM, NULL

void* malloc(size_t bytes) {
  NEXT_MALLOC(void*, malloc, size_t);
  FAIL_MALLOC();
  return real(bytes);
}
void* calloc(size_t count, size_t bytes) {
  NEXT_MALLOC(void*, calloc, size_t, size_t);
  FAIL_MALLOC();
  return real(count, bytes);
}
void* realloc(void* memory, size_t bytes) {
  NEXT_MALLOC(void*, realloc, void*, size_t);
  FAIL_MALLOC();
  return real(memory, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
  NEXT_MALLOC(void*, memalign, size_t, size_t);
  FAIL_MALLOC();
  return real(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  NEXT_MALLOC(void*, memalign, size_t, size_t);
  FAIL_MALLOC();
  return real(alignment, bytes);
}

#ifdef CONVOY_FAULT_SANITIZED
/* operator new, by its mangled names: throws std::bad_alloc, or returns NULL. */
static void throw_bad_alloc(void) {
  void (*thrower)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "_ZSt17__throw_bad_allocv");
  thrower();
}
#define OPERATOR_NEW(name, failure, parameters, ...)                      \
  void* name parameters {                                                 \
    static void*(*real)parameters;                                        \
    if (real == NULL) real = (void*(*)parameters)dlsym(RTLD_NEXT, #name); \
    if (fails(1, __builtin_return_address(0))) {                          \
      failure;                                                            \
      return NULL;                                                        \
    }                                                                     \
    return real(__VA_ARGS__);                                             \
  }
OPERATOR_NEW(_Znwm, throw_bad_alloc(), (size_t bytes), bytes)
OPERATOR_NEW(_Znam, throw_bad_alloc(), (size_t bytes), bytes)
OPERATOR_NEW(_ZnwmSt11align_val_t, throw_bad_alloc(), (size_t bytes, size_t alignment), bytes,
             alignment)
OPERATOR_NEW(_ZnamSt11align_val_t, throw_bad_alloc(), (size_t bytes, size_t alignment), bytes,
             alignment)
OPERATOR_NEW(_ZnwmRKSt9nothrow_t, (void)0, (size_t bytes, const void* tag), bytes, tag)
OPERATOR_NEW(_ZnamRKSt9nothrow_t, (void)0, (size_t bytes, const void* tag), bytes, tag)
#endif

/* NOTE: what a library does while it is loaded is left alone: the initialisers of oneDNN's end the
 * process where they have no memory, before the library that asked for it can say so. */
void* dlopen(const char* path, int mode) {
  REAL(void*, dlopen, const char*, int);
  ++loading;
  void* const library = real(path, mode);
  --loading;
  return library;
}

#define CALLER __builtin_return_address(0)
#define FAIL_IO(value) \
  if (ours(CALLER) && fails(0, CALLER)) return errno = EIO, (value)

int open(const char* path, int flags, ...) {
  REAL(int, open, const char*, int, ...);
  va_list list;
  va_start(list, flags);
  const int mode = va_arg(list, int);
  va_end(list);
  FAIL_IO(-1);
  return real(path, flags, mode);
}
int mkstemp(char* path) {
  REAL(int, mkstemp, char*);
  FAIL_IO(-1);
  return real(path);
}
FILE* fdopen(int descriptor, const char* mode) {
  REAL(FILE*, fdopen, int, const char*);
  FAIL_IO(NULL);
  return real(descriptor, mode);
}
ssize_t pread(int descriptor, void* into, size_t bytes, off_t at) {
  REAL(ssize_t, pread, int, void*, size_t, off_t);
  FAIL_IO(-1);
  return real(descriptor, into, bytes, at);
}
ssize_t read(int descriptor, void* into, size_t bytes) {
  REAL(ssize_t, read, int, void*, size_t);
  FAIL_IO(-1);
  return real(descriptor, into, bytes);
}
size_t fwrite(const void* from, size_t size, size_t count, FILE* file) {
  REAL(size_t, fwrite, const void*, size_t, size_t, FILE*);
  FAIL_IO(0);
  return real(from, size, count, file);
}
int fflush(FILE* file) {
  REAL(int, fflush, FILE*);
  FAIL_IO(EOF);
  return real(file);
}
int fsync(int descriptor) {
  REAL(int, fsync, int);
  FAIL_IO(-1);
  return real(descriptor);
}
int rename(const char* from, const char* to) {
  REAL(int, rename, const char*, const char*);
  FAIL_IO(-1);
  return real(from, to);
}
FILE* fopen(const char* path, const char* mode) {
  REAL(FILE*, fopen, const char*, const char*);
  FAIL_IO(NULL);
  return real(path, mode);
}
FILE* fopen64(const char* path, const char* mode) {
  REAL(FILE*, fopen64, const char*, const char*);
  FAIL_IO(NULL);
  return real(path, mode);
}
int stat(const char* path, struct stat* status) {
  REAL(int, stat, const char*, struct stat*);
  FAIL_IO(-1);
  return real(path, status);
}
int lstat(const char* path, struct stat* status) {
  REAL(int, lstat, const char*, struct stat*);
  FAIL_IO(-1);
  return real(path, status);
}
int fstat(int descriptor, struct stat* status) {
  REAL(int, fstat, int, struct stat*);
  FAIL_IO(-1);
  return real(descriptor, status);
}
int access(const char* path, int mode) {
  REAL(int, access, const char*, int);
  FAIL_IO(-1);
  return real(path, mode);
}
int mkdir(const char* path, mode_t mode) {
  REAL(int, mkdir, const char*, mode_t);
  FAIL_IO(-1);
  return real(path, mode);
}
ssize_t readlink(const char* path, char* into, size_t bytes) {
  REAL(ssize_t, readlink, const char*, char*, size_t);
  FAIL_IO(-1);
  return real(path, into, bytes);
}
int fchown(int descriptor, uid_t owner, gid_t group) {
  REAL(int, fchown, int, uid_t, gid_t);
  FAIL_IO(-1);
  return real(descriptor, owner, group);
}
int fchmod(int descriptor, mode_t mode) {
  REAL(int, fchmod, int, mode_t);
  FAIL_IO(-1);
  return real(descriptor, mode);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*work)(void*),
                   void* argument) {
  REAL(int, pthread_create, pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  if (ours(CALLER) && fails(0, CALLER)) return EAGAIN;
  return real(thread, attributes, work, argument);
}

static int (*real_main)(int, char**, char**);
static int counted_main(int argc, char** argv, char** environment) {
  const char* const kind = getenv("CONVOY_FAULT");
  const char* const at = getenv("CONVOY_FAULT_AT");
  wanted_malloc = kind != NULL && strcmp(kind, "malloc") == 0;
  fault_at = at == NULL ? 0 : atol(at);
  tracing = getenv("CONVOY_FAULT_TRACE") != NULL;
  active = kind != NULL;
  const int code = real_main(argc, argv, environment);
  active = 0;
  return code;
}
int __libc_start_main(int (*main)(int, char**, char**), int argc, char** argv, void (*init)(void),
                      void (*fini)(void), void (*rtld_fini)(void), void* stack_end) {
  REAL(int, __libc_start_main, int (*)(int, char**, char**), int, char**, void (*)(void),
       void (*)(void), void (*)(void), void*);
  real_main = main;
  return real(counted_main, argc, argv, init, fini, rtld_fini, stack_end);
}
