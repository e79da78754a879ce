/* Preloaded into every process of a node: readings of the real-time clock are off by the seconds
   in /etc/testbed-skew; if a second number is there, only every other period of so many seconds.
   Sleeps and time limits are not touched. */

#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000

static double skew(void)
{
    static double seconds, period;
    static int known;
    struct timespec now;
    if (!known) {
        FILE *file = fopen("/etc/testbed-skew", "r");
        if (file) {
            if (fscanf(file, "%lf %lf", &seconds, &period) < 1)
                seconds = 0;
            fclose(file);
        }
        known = 1;
    }
    if (period <= 0)
        return seconds;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return fmod((now.tv_sec + now.tv_nsec / 1e9) / period, 2) < 1 ? 0 : seconds;
}

int clock_gettime(clockid_t clock, struct timespec *out)
{
    int code = syscall(SYS_clock_gettime, clock, out);
    int real = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
    if (code || !real)
        return code;
    double seconds = skew(), whole = floor(seconds);
    out->tv_sec += (time_t)whole;
    out->tv_nsec += (long)((seconds - whole) * SECOND_NS);
    if (out->tv_nsec >= SECOND_NS) {
        out->tv_sec++;
        out->tv_nsec -= SECOND_NS;
    }
    return 0;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}
