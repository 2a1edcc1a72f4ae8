/*
 * The wall clock of one process, set by SHIFT_S seconds: preload it (LD_PRELOAD) before Python and librdkafka.
 * With SHIFT_FILE, the number of seconds is the little-endian 64-bit integer at the start of that file, looked at each
 * time, so that a running process can be set.
 *
 * The monotonic clock is the machine's. Waits until a wall-clock time get the machine's time back, because the kernel
 * does not know the shifted one.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define ORIGINAL(result, name, ...)                  \
    static result (*original)(__VA_ARGS__);          \
    if (!original) original = dlsym(RTLD_NEXT, name)

enum { DATES_S = 500000000 }; /* a time above this is a date, and not an interval */

static time_t shift_s(void)
{
    static int64_t fixed;
    static volatile int64_t *shift;
    if (!shift) {
        const char *text = getenv("SHIFT_S"), *path = getenv("SHIFT_FILE");
        int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof fixed, PROT_READ, MAP_SHARED, file, 0);
        if (file >= 0) close(file);
        fixed = text ? atol(text) : 0;
        shift = mapped == MAP_FAILED ? &fixed : mapped;
    }
    return *shift;
}

static struct timespec machines(const struct timespec *until)
{
    struct timespec at = *until;
    if (at.tv_sec > DATES_S) at.tv_sec -= shift_s();
    return at;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    ORIGINAL(int, "clock_gettime", clockid_t, struct timespec *);
    int result = original(clock, now);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += shift_s();
    return result;
}

int gettimeofday(struct timeval *now, void *zone)
{
    ORIGINAL(int, "gettimeofday", struct timeval *, void *);
    int result = original(now, zone);
    now->tv_sec += shift_s();
    return result;
}

time_t time(time_t *now)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (now) *now = at.tv_sec;
    return at.tv_sec;
}

int timespec_get(struct timespec *now, int base)
{
    clock_gettime(CLOCK_REALTIME, now);
    return base;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until)
{
    static int (*original)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!original) original = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!original) original = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec at = machines(until);
    return original(condition, mutex, &at);
}

int cnd_timedwait(cnd_t *condition, mtx_t *mutex, const struct timespec *until)
{
    ORIGINAL(int, "cnd_timedwait", cnd_t *, mtx_t *, const struct timespec *);
    struct timespec at = machines(until);
    return original(condition, mutex, &at);
}

int pthread_mutex_timedlock(pthread_mutex_t *mutex, const struct timespec *until)
{
    ORIGINAL(int, "pthread_mutex_timedlock", pthread_mutex_t *, const struct timespec *);
    struct timespec at = machines(until);
    return original(mutex, &at);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until)
{
    ORIGINAL(int, "sem_timedwait", sem_t *, const struct timespec *);
    struct timespec at = machines(until);
    return original(semaphore, &at);
}
